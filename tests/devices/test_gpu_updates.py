"""Gradient steps in one launch of one block, on the stand-in, against float64 and the CPU."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl_devices import Kernel, UnsupportedError, kernel
from pearl_devices.gpu import program, updates
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.gpu.kernels import written_for
from pearl_devices.kernels.fused import WIDEST
from tests.devices import gpu_stand_in as stand_in
from tests.devices.test_primitives_nets import Reference, fresh, hyper, in_double, losses_of

Widths = dict[str, tuple[int, ...]]
STEPS = 5
NEAR_ZERO = 2e-5
"""An element whose gradient in some step is a smaller share of the largest one is near a zero
gradient: Adam makes as large a step as any other out of what is rounding."""


def dqn(layers: tuple[int, ...], batch: int, **more: int) -> tuple[Kernel, Widths]:
    sizes: dict[str, Any] = {"obs": layers[0], "act": 0, "q": layers, "batch": batch}
    sizes |= {"steps": STEPS, "double": 0, "duelling": 0, **more}
    return kernel("update.dqn", sizes, program="tests.kernel_losses:dqn"), {"q": layers}


def off_policy(
    algorithm: str, hidden: tuple[int, ...], obs: int, act: int, batch: int
) -> tuple[Kernel, Widths]:
    critic = (obs + act, *hidden, 1)
    widths: Widths = {"actor": (obs, *hidden, act)}
    sizes: dict[str, Any] = {"obs": obs, "act": act, "batch": batch, "steps": STEPS}
    if algorithm == "ddpg":
        widths["critic"] = critic
    else:
        widths |= {"critic1": critic, "critic2": critic}
    if algorithm == "td3":
        sizes["policy_delay"] = 2
    if algorithm == "sac":
        widths |= {"actor": (obs, *hidden, 2 * act), "alpha": (0, 1)}
    program = f"tests.kernel_losses:{algorithm}"
    return kernel(f"update.{algorithm}", {**sizes, **widths}, program=program), widths


USUAL, ODD = (4, 64, 64, 2), (5, 17, 3)
CASES: dict[str, tuple[tuple[Kernel, Widths], dict[str, float]]] = {
    "dqn": (dqn(USUAL, 64), {}),
    "double dqn": (dqn(USUAL, 64, double=1), {"huber": 0.7, "clip_norm": 0.05}),
    "dqn of odd sizes": (dqn(ODD, 13, double=1), {"target_every": 2}),
    "duelling dqn": (dqn((5, 17, 24, 4), 70, double=1, duelling=1), {"clip_norm": 0.1}),
    "duelling dqn, one layer": (dqn((7, 4), 6, double=1, duelling=1), {"huber": 0.3}),
    "ddpg": (off_policy("ddpg", (64, 64), 3, 1, 64), {}),
    "ddpg of odd sizes": (off_policy("ddpg", (17,), 5, 3, 13), {"clip_norm": 0.05}),
    "ddpg, two passes": (off_policy("ddpg", (32, 24), 6, 2, 70), {"huber": 0.7}),
    "td3": (off_policy("td3", (64, 64), 3, 1, 64), {"huber": 0.7}),
    "td3 of odd sizes": (off_policy("td3", (17,), 5, 3, 13), {"clip_norm": 0.05}),
    "td3, two passes": (off_policy("td3", (32, 24), 6, 2, 70), {"target_every": 3}),
    "sac": (off_policy("sac", (64, 64), 3, 1, 64), {}),
    "sac of odd sizes": (off_policy("sac", (17,), 5, 3, 13), {"clip_norm": 0.05}),
    "sac, two passes": (off_policy("sac", (32, 24), 6, 2, 70), {"target_every": 3, "huber": 0.7}),
}
ODD_CASE = {f"update.{name}": f"{name} of odd sizes" for name in ("dqn", "ddpg", "td3", "sac")}
"""Of each kind a case of sizes that are no multiples of warps or of four."""


def arrays(case: str) -> dict[str, stand_in.Array]:
    (k, widths), constants = CASES[case]
    given = fresh(k, widths, seed=3)
    for name, value in constants.items():
        given[f"hyper.{name}"][:] = value
    return dict(given)


@cache
def fired(case: str, order: int = 0) -> dict[str, stand_in.Array]:
    k, _ = CASES[case][0]
    return stand_in.fire_cuda(k, arrays(case), driver=HostDriver(order), variant="fused")


@cache
def prepared(case: str) -> Any:
    k, _ = CASES[case][0]
    twin = stand_in.NotingTwin()
    stand_in.bind_cuda(k, stand_in.tensors(arrays(case)), twin, "fused")
    (launch,) = twin.prepared
    return launch


@cache
def in_float64(case: str) -> dict[str, stand_in.Array]:
    """Parameters, targets, moments and errors of the reference; clear.X: which elements of network
    X are not near a zero gradient."""
    (k, widths), constants = CASES[case]
    given = arrays(case)
    reference = Reference(given, widths, bool(k.dims.get("duelling")))
    every = int(constants.get("target_every", 0))
    if every:  # the reference moves targets by tau alone
        given["hyper.tau"][:] = 0.0
    found: dict[str, stand_in.Array] = {"batch.td": np.zeros(given["batch.td"].shape)}
    for s in range(STEPS):
        td = reference.step(losses_of(k), in_double(given, s), hyper(k, given, s + 1))
        found["batch.td"][s] = td.numpy()
        for name in widths:
            last = reference.flat[name].grad  # none before the first step of a late actor
            grad = np.abs(np.zeros(reference.flat[name].shape) if last is None else last.numpy())
            clear = found.setdefault(f"clear.{name}", np.ones(grad.shape, bool))
            clear &= (grad > NEAR_ZERO * grad.max()) | (grad == 0)
        if every and (s + 1) % every == 0:
            for name, target in reference.target.items():
                target.copy_(reference.flat[name].detach())
    for name in widths:
        state = reference.optimiser[name].state[reference.flat[name]]
        found[f"learner.{name}"] = reference.flat[name].detach().numpy()
        found[f"learner.{name}.m"] = state["exp_avg"].numpy()
        found[f"learner.{name}.v"] = state["exp_avg_sq"].numpy()
        found[f"loss.{name}"] = np.array([reference.losses[name][-1]])
    for name, target in reference.target.items():
        found[f"learner.{name}.target"] = target.numpy()
    if constants.get("clip_norm"):
        assert max(reference.norms.values()) > constants["clip_norm"]
    return found


def assert_same_steps(
    found: dict[str, stand_in.Array], wanted: dict[str, stand_in.Array], case: str
) -> None:
    """Within the bars; elements near a zero gradient are compared by their mean gradient, the first
    moment, instead of their steps."""
    widths, given = CASES[case][0][1], arrays(case)
    for name in widths:
        for moment in (f"learner.{name}.m", f"learner.{name}.v"):
            stand_in.assert_near(found[moment], wanted[moment], given[moment], moment)
        clear = in_float64(case)[f"clear.{name}"]
        assert clear.mean() >= 0.9
        for array in (f"learner.{name}", f"learner.{name}.target"):
            if array in wanted:
                stand_in.assert_near(*(x[array][clear] for x in (found, wanted, given)), array)
        assert found[f"loss.{name}"] == pytest.approx(wanted[f"loss.{name}"], rel=1e-4)
    stand_in.assert_near(found["batch.td"], wanted["batch.td"], name="batch.td")


@pytest.mark.parametrize("case", CASES)
def test_gradient_steps_are_those_of_the_float64_reference(case: str) -> None:
    assert_same_steps(fired(case), in_float64(case), case)


@pytest.mark.parametrize("case", CASES)
def test_gradient_steps_are_those_of_the_cpu_and_counters_are_equal(case: str) -> None:
    k, _ = CASES[case][0]
    given, found = arrays(case), fired(case)
    wanted = stand_in.fire_native(k, given)
    assert_same_steps(found, wanted, case)
    counters = [n for n in given if n.endswith(".steps") or n in ("learner.step", "rng.update")]
    stand_in.assert_equal(found, wanted, *counters)
    read = [n for n in given if n.startswith(("hyper.", "act.", "batch.")) and n != "batch.td"]
    stand_in.assert_equal(found, given, *read)


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_the_threads_changes_no_bit(case: str) -> None:
    for order in stand_in.ORDERS[1:]:
        stand_in.assert_equal(fired(case, order), fired(case))


@pytest.mark.parametrize("case", ODD_CASE.values())
def test_a_launch_of_five_steps_is_five_launches_of_one(case: str) -> None:
    k, _ = CASES[case][0]
    one = kernel(k.kind, {**k.dims, "steps": 1}, program=k.program)
    single = arrays(case)
    for s in range(STEPS):
        rows = {n: a[s : s + 1] if n.startswith("batch.") else a for n, a in single.items()}
        after = stand_in.fire_cuda(one, rows, variant="fused")
        single |= {n: a for n, a in after.items() if not n.startswith("batch.")}
        single["batch.td"][s] = after["batch.td"][0]
    stand_in.assert_equal(fired(case), single)


@pytest.mark.parametrize("algorithm", ["td3", "sac"])
def test_step_numbers_go_on_where_their_constants_are_computed_anew(algorithm: str) -> None:
    k, widths = off_policy(algorithm, (8,), 3, 1, 4)
    long = kernel(k.kind, {**k.dims, "steps": 70}, program=k.program)
    given = fresh(long, widths)
    for name in widths:
        given[f"learner.{name}.steps"][:] = 1000
        given[f"hyper.lr.{name}"][:] = 1e-5
    found, wanted = (
        stand_in.fire_cuda(long, given, variant="fused"),
        stand_in.fire_native(long, given),
    )
    stand_in.assert_equal(found, wanted, *(f"learner.{name}.steps" for name in widths))
    for name in widths:
        array = f"learner.{name}"
        stand_in.assert_near(found[array], wanted[array], given[array], array)


@pytest.mark.parametrize("case", ODD_CASE.values())
def test_learning_rates_are_read_at_each_firing(case: str) -> None:
    k, widths = CASES[case][0]
    given = stand_in.tensors(arrays(case))
    call = stand_in.bind_cuda(k, given, HostDriver(), "fused")
    call()
    before = {name: given[f"learner.{name}"].clone() for name in widths}
    for name in widths:
        given[f"hyper.lr.{name}"][:] = 0.0
    call()
    for name in widths:
        assert given[f"learner.{name}"].equal(before[name])
        assert given[f"learner.{name}.m"].abs().max() > 0


@pytest.mark.parametrize(("kilobytes", "rows"), [(9, 16), (60, 32), (100, 64)])
def test_what_shared_memory_does_not_hold_lies_in_the_devices(
    kilobytes: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = "double dqn"
    monkeypatch.setattr(updates, "STAND_IN_BYTES", kilobytes * 1024)
    k, _ = CASES[case][0]
    given, twin = arrays(case), stand_in.NotingTwin(7)
    found = stand_in.fire_cuda(k, given, driver=twin, variant="fused")
    (launch,) = twin.prepared
    assert 0 < launch.shared_bytes <= kilobytes * 1024 - updates.STATIC_BYTES
    assert launch.program.constants["SCRATCH_FLOATS"] > 0
    assert launch.program.constants["ROWS"] == rows
    assert_same_steps(found, stand_in.fire_native(k, given), case)


def test_the_widest_networks_are_learned_too() -> None:
    k, _ = dqn((16, WIDEST, WIDEST, 4), 32, steps=1, double=1)
    given, twin = dict(fresh(k, {"q": k.layers()})), stand_in.NotingTwin()
    found, wanted = (
        stand_in.fire_cuda(k, given, driver=twin, variant="fused"),
        stand_in.fire_native(k, given),
    )
    stand_in.assert_near(found["learner.q.m"], wanted["learner.q.m"], name="learner.q.m")
    stand_in.assert_near(found["batch.td"], wanted["batch.td"], name="batch.td")
    (launch,) = twin.prepared
    assert launch.program.constants["Q_PARAMS_SHARED"] == 0


@pytest.mark.parametrize("case", [c for c in ODD_CASE.values() if not c.startswith("ddpg")])
def test_no_array_is_read_or_written_beyond_its_end(case: str, tmp_path: Path) -> None:
    launch = prepared(case)
    stand_in.assert_stays_inside([launch], tmp_path, launch.arguments[0])


def faulty(monkeypatch: pytest.MonkeyPatch, folder: Path, file: str, old: str, new: str) -> None:
    """A copy of the sources with one fault takes their place."""
    copy = folder / "sources"
    shutil.copytree(program.SOURCES, copy)
    text = (copy / file).read_text()
    assert text.count(old) == 1
    (copy / file).write_text(text.replace(old, new))
    monkeypatch.setattr(program, "SOURCES", copy)


BARRIERS = (
    ("block_nets.cuh", "__syncthreads();  // the derivative overwrites what was read"),
    ("block_nets.cuh", "__syncthreads();\n    if constexpr (L + 1 < LAYERS) forward"),
)


@pytest.mark.parametrize(("file", "barrier"), BARRIERS)
def test_a_missing_barrier_is_seen_in_another_order(
    file: str, barrier: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = "dqn of odd sizes"
    k, _ = CASES[case][0]
    faulty(monkeypatch, tmp_path, file, barrier, barrier.replace("__syncthreads()", ""))
    found = [
        stand_in.fire_cuda(k, arrays(case), driver=HostDriver(o), variant="fused")
        for o in stand_in.ORDERS
    ]
    assert any((a[name] != fired(case)[name]).any() for a in found for name in a)


def test_networks_that_one_block_does_not_take_are_refused_with_a_reason() -> None:
    for layers, batch, reason in (
        ((4, 512, 2), 8, "512 units, more than 256"),
        ((4, *[8] * 6, 2), 8, "7 layers, more than 5"),
        ((600, 8, 2), 8, "600 inputs, more than 512"),
        ((4, 8, 2), 100_000, "100000 rows"),
    ):
        k, widths = dqn(layers, batch, steps=1)
        assert not written_for(k)["fused"].fits(k)
        with pytest.raises(UnsupportedError, match=f"{reason}.*'eager'"):
            stand_in.bind_cuda(k, stand_in.tensors(fresh(k, widths)), HostDriver(), "fused")
