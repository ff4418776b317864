"""PPO's and A2C's gradient steps in one launch of one block, against float64 and the CPU."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pearl_devices import Kernel, UnsupportedError, kernel
from pearl_devices.gpu.driver import HostDriver
from tests.devices import gpu_stand_in as stand_in
from tests.devices.test_primitives_ppo import CONTINUOUS, learning, reference, update

USUAL = update({"envs": 8, "obs": 4, "act": 0}, hidden=(64, 64), minibatches=2)
ODD = update({"envs": 13, "obs": 5, "act": 2}, hidden=(17,), minibatches=16, tanh=0)
"""Minibatches of 13 rows."""
PASSES = update({"envs": 35, "obs": 5, "act": 2}, hidden=(24, 16), minibatches=8)
"""Minibatches of 70 rows, more than one pass takes."""
A2C = update(CONTINUOUS, "a2c", 1, 1)

CASES: dict[str, tuple[Kernel, dict[str, Any]]] = {
    "usual": (USUAL, {}), "odd sizes": (ODD, {}), "value clipping": (ODD, {"value_clip": 0.2}),
    "no clipping": (ODD, {"clip": 0.0, "clip_norm": 0.0}),
    "advantages as given": (ODD, {"normalise": 0.0}), "annealed": (ODD, {"anneal": 64.0}),
    "two passes": (PASSES, {}), "a2c": (A2C, {"rmsprop": (0.99, 1e-5)}),
}  # fmt: skip


def arrays(case: str) -> dict[str, stand_in.Array]:
    k, constants = CASES[case]
    given = dict(learning(k))
    for name, value in constants.items():
        given[f"hyper.{name}"][:] = value
    given["learner.step"][:] = 16
    return given


@cache
def fired(case: str, order: int = 0) -> dict[str, stand_in.Array]:
    return stand_in.fire_cuda(
        CASES[case][0], arrays(case), driver=HostDriver(order), variant="fused"
    )


@cache
def prepared(case: str) -> Any:
    twin = stand_in.NotingTwin()
    stand_in.bind_cuda(CASES[case][0], stand_in.tensors(arrays(case)), twin, "fused")
    (launch,) = twin.prepared
    return launch


def assert_same_steps(
    found: dict[str, stand_in.Array], wanted: dict[str, stand_in.Array], case: str
) -> None:
    """Parameters and moments within the bars; no element here is near a zero gradient."""
    given = arrays(case)
    for name, array in wanted.items():
        if array.dtype.kind == "f" and name.startswith("learner.") and (array != given[name]).any():
            stand_in.assert_near(found[name], array, given[name], name)


@pytest.mark.parametrize("case", CASES)
def test_all_gradient_steps_of_a_rollout_are_those_of_the_float64_reference(case: str) -> None:
    exact = {n: a.numpy() for n, a in reference(CASES[case][0], arrays(case)).items()}
    assert_same_steps(fired(case), exact, case)


@pytest.mark.parametrize("case", CASES)
def test_all_gradient_steps_are_those_of_the_cpu_and_counters_are_equal(case: str) -> None:
    given, found = arrays(case), fired(case)
    wanted = stand_in.fire_native(CASES[case][0], given)
    assert_same_steps(found, wanted, case)
    for name in ("actor", "critic"):
        assert found[f"loss.{name}"] == pytest.approx(wanted[f"loss.{name}"], rel=1e-4, abs=1e-6)
    counters = [n for n in given if n.endswith(".steps") or n in ("learner.step", "rng.update")]
    stand_in.assert_equal(found, wanted, *counters)
    stand_in.assert_equal(found, given, "rollout.", "hyper.")
    if case == "a2c":  # RMSprop has no first moment
        stand_in.assert_equal(found, given, "learner.actor.m", "learner.critic.m")


@pytest.mark.parametrize("case", ["usual", "odd sizes", "two passes", "a2c"])
def test_the_order_of_the_threads_changes_no_bit(case: str) -> None:
    for order in stand_in.ORDERS[1:]:
        stand_in.assert_equal(fired(case, order), fired(case))


def test_a_second_firing_draws_another_permutation_and_goes_on() -> None:
    given = arrays("annealed")
    found = stand_in.fire_cuda(ODD, given, 2, variant="fused")
    wanted = stand_in.fire_native(ODD, given, 2)
    assert found["rng.update"][1] == 2
    assert found["learner.step"][0] == 16 + 2 * ODD.dim("steps")
    assert_same_steps(found, wanted, "annealed")


def test_no_array_is_read_or_written_beyond_its_end(tmp_path: Path) -> None:
    launch = prepared("odd sizes")
    stand_in.assert_stays_inside([launch], tmp_path, launch.arguments[0])


def test_minibatches_that_do_not_fill_a_rollout_are_refused() -> None:
    k = kernel(ODD.kind, {**ODD.dims, "batch": 11}, program=ODD.program)
    given = stand_in.tensors(arrays("odd sizes"))
    with pytest.raises(UnsupportedError, match="minibatches of 11 rows do not fill a rollout"):
        stand_in.bind_cuda(k, given, HostDriver(), "fused")
