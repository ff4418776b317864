"""The designs that a plan chooses from on a simulated FPGA: array, lanes, sub-batch, fan-out, where
the replay lives. The planner's choice is held against enumeration."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pearl
from pearl.advice.hardware import catalogue_device
from pearl.planner.planner import build_problem, plan_graph
from pearl.planner.verilog import check_folder
from pearl_devices import Device, Kernel, kernel
from pearl_devices import fpga as device_kind
from pearl_devices.fpga import logic, resources

SPECS, SMALL_SPECS = 50, 12
HOMES = ("cpu", "fpga")
REPLAY = ("store", "sample", "priorities")


def random_system(number: int) -> Any:
    """A spec of DQN with random sizes, doorbell and board, on the CPU and the simulated FPGA."""
    rng = np.random.default_rng(number)
    system = pearl.load(
        "dqn_cartpole_fpga",
        set={
            "algorithm.hidden": [int(n) for n in rng.choice([8, 32, 64, 128], rng.integers(1, 3))],
            "algorithm.batch_size": int(rng.choice([8, 32, 128, 512])),
            "algorithm.num_envs": int(rng.choice([1, 8])),
            "algorithm.replay.capacity": int(rng.choice([1000, 5000, 50_000])),
            "algorithm.replay.fanout": int(rng.choice([3, 8, 16])),
            "objective": str(rng.choice(["throughput", "power_efficiency"])),
            "limits.devices": {t: ["cpu", "fpga"] for t in ("act", *REPLAY, "learn")},
        },
    )
    board = system.platform.device("fpga")
    figures = {
        **board.figures,
        "alms": float(rng.choice([3000, 40_000, 487_200])),
        "ram_blocks": float(rng.choice([60, 400, 7110])),
    }
    board = replace(
        board, width=int(rng.choice([150, 500, 4510])), figures=figures,
        overhead_s=float(rng.choice([1e-6, 1e-5, 1e-4])),
    )  # fmt: skip
    return on_board(system, board)


def on_board(system: Any, board: Device) -> Any:
    """The system with this board in the place of its FPGA."""
    others = tuple(d for d in system.platform.devices if d.name != "fpga")
    return replace(system, platform=replace(system.platform, devices=(*others, board)))


def value(system: Any) -> float:
    try:
        return plan_graph(build_problem(system), time_limit_s=300.0).value
    except pearl.InfeasibleError:
        return 0.0


def enumerated(system: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """The best over all designs, each planned with no other to choose from."""
    best, levels = 0.0, dict(logic.DEEPEST)
    for n, part, fanout in product(device_kind.ARRAYS, device_kind.LANES, levels):
        with monkeypatch.context() as only:
            only.setattr(device_kind, "ARRAYS", (n,))
            only.setattr(device_kind, "LANES", (part,))
            only.setattr(resources, "DEEPEST", {fanout: levels[fanout]})
            for home in HOMES:
                pins = {**system.limits.pin, **dict.fromkeys(REPLAY, home)}
                there = replace(system, limits=replace(system.limits, pin=pins))
                best = max(best, value(there))
    return best


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SPECS))
def test_the_choice_is_the_best_of_all_designs(number, monkeypatch):
    system = random_system(number)
    assert value(system) == pytest.approx(enumerated(system, monkeypatch), rel=1e-6)


def small_system(number: int) -> Any:
    """A random spec, its acting on the CPU, on a part with too little memory for some designs."""
    rng, system = np.random.default_rng(number), random_system(number)
    board = system.platform.device("fpga")
    figures = {**board.figures, "alms": 487_200.0, "ram_blocks": float(rng.integers(60, 500))}
    board = replace(board, width=4510, overhead_s=1e-6, figures=figures)
    system = on_board(system, board)
    pins = {**system.limits.pin, "act": "cpu"}
    return replace(system, limits=replace(system.limits, pin=pins))


def enumerated_sub_batches(system: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """The best over arrays, lanes, sub-batches and where the replay lives, each planned with no
    other to choose from."""

    def planned(replay: str, learner: str) -> float:
        pins = {**system.limits.pin, **dict.fromkeys(REPLAY, replay), "learn": learner}
        return value(replace(system, limits=replace(system.limits, pin=pins)))

    best = max(planned(home, "cpu") for home in HOMES)
    batch = build_problem(system).graph.task("learn").kernel.dim("batch")
    for n, part in product(device_kind.ARRAYS, device_kind.LANES):
        for power in (None, *range((-(-batch // n) - 1).bit_length())):
            rows = () if power is None else (n << power,)
            with monkeypatch.context() as only:
                only.setattr(device_kind, "ARRAYS", (n,))
                only.setattr(device_kind, "LANES", (part,))
                only.setattr(device_kind, "_sub_batches", lambda kernel, shape, r=rows: iter([r]))
                best = max(best, *(planned(home, "fpga") for home in HOMES))
    return best


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SMALL_SPECS))
def test_the_sub_batch_is_the_best_where_memory_is_short(number, monkeypatch):
    system = small_system(number)
    assert value(system) == pytest.approx(enumerated_sub_batches(system, monkeypatch), rel=1e-6)


UPDATE = kernel("update.dqn", obs=4, act=0, q=(4, 64, 64, 2), batch=32, steps=1, double=1)
DRAWS = kernel(
    "replay_sample", envs=1, obs=4, act=0, capacity=50_000, fanout=16, prioritised=1, batch=32,
    steps=1, n_step=1,
)  # fmt: skip


def test_parts_of_the_catalogue_say_what_fits():
    fits = {}
    for name in ("agilex_agf014", "stratix10_gx2800", "alveo_u50", "zcu104"):
        device = catalogue_device(name)
        learners = [variant for variant, _ in device_kind.offers(UPDATE, device)]
        fits[name] = learners, bool(device_kind.offers(DRAWS, device))
    every = [f"array{n}" for n in device_kind.ARRAYS for _ in device_kind.LANES]
    assert fits["agilex_agf014"] == (every[:-1], True)  # 64 lanes beside 64 × 64 take 4,870 blocks
    assert fits["stratix10_gx2800"] == (every, True)
    assert fits["alveo_u50"] == fits["zcu104"] == ([], True)
    slow = replace(catalogue_device("agilex_agf014"), figures={"alms": 1.0, "float32_cycles": 9.0})
    assert device_kind.tell_unchecked(slow).endswith("for float32 blocks of latency 9")


def test_engines_that_fit_alone_but_not_together_are_no_plan():
    """A part with room for the learner, or for the tree, and for half of the other."""
    pins = dict.fromkeys((*REPLAY, "learn"), "fpga")
    keys = {"algorithm.replay.capacity": 100_000, "algorithm.hidden": [8], "limits.pin": pins}
    system = pearl.load("dqn_cartpole_fpga", set=keys)
    board = system.platform.device("fpga")
    fits = [
        blocks
        for blocks in range(50, 400, 2)
        if (small := replace(board, figures={**board.figures, "ram_blocks": float(blocks)}))
        and device_kind.offers(replace_capacity(100_000), small)
        and device_kind.offers(UPDATE, small)
    ]
    small = replace(board, figures={**board.figures, "ram_blocks": float(fits[0])})
    with pytest.raises(
        pearl.InfeasibleError, match=r"do not fit together on the simulated fpga: the set of eng"
    ):
        pearl.plan(on_board(system, small))


@pytest.mark.parametrize(
    ("width", "figures", "fitting"),
    [
        (170, {"alms": 30_000.0}, ("array8", 166)),
        (170, {"alms": 25_000.0}, ("array8", 100)),  # 20,408 of 8 lanes and 6,819 of the tree
        (170, {"ram_blocks": 260.0}, ("array8-sub32", 166)),
    ],
)
def test_engines_that_do_not_fit_together_give_way_to_the_best_that_do(width, figures, fitting):
    pins = {**dict.fromkeys((*REPLAY, "learn"), "fpga"), "act": "cpu"}
    keys = {"limits.pin": pins, "objective": "throughput"}
    system = pearl.load("dqn_cartpole_fpga", set=keys)
    board = system.platform.device("fpga")
    small = replace(board, width=width, figures={**board.figures, **figures})
    plan = pearl.plan(on_board(system, small))
    assert (plan.task("learn").variant, plan.task("learn").width) == fitting
    assert plan.task("sample").variant == "integer-tree"
    assert (plan.status, plan.bound_value) == ("optimal", pytest.approx(plan.value))
    assert plan.problem is not None
    modes = {(m.variant, m.width) for m in plan.problem.costs.of("learn")}
    assert ("array8", 166) in modes  # the problem is the whole one


def replace_capacity(capacity: int) -> Kernel:
    return kernel(DRAWS.kind, {**DRAWS.dims, "capacity": capacity})


def test_designs_are_written_to_a_new_or_an_empty_folder(tmp_path: Path) -> None:
    assert check_folder(tmp_path) == tmp_path
    assert check_folder(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(pearl.SpecError, match="must be a new or an empty folder"):
            check_folder(taken)
