"""The designs that a plan chooses from on a simulated FPGA: array, lanes, fan-out, where the replay
lives. The planner's choice is held against enumeration."""

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
from pearl_devices import Kernel, kernel
from pearl_devices import fpga as device_kind
from pearl_devices.fpga import logic, resources

SPECS = 50
REPLAY = ("replay_insert", "replay_sample", "replay_update")


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
            "limits.devices": {t: ["cpu", "fpga"] for t in ("inference", *REPLAY, "update")},
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
    others = tuple(d for d in system.platform.devices if d.name != "fpga")
    return replace(system, platform=replace(system.platform, devices=(*others, board)))


def value(system: Any) -> float:
    try:
        return plan_graph(build_problem(system)).value
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
            for home in ("cpu", "fpga"):
                pins = {**system.limits.pin, **dict.fromkeys(REPLAY, home)}
                there = replace(system, limits=replace(system.limits, pin=pins))
                best = max(best, value(there))
    return best


@pytest.mark.slow
@pytest.mark.parametrize("number", range(SPECS))
def test_the_choice_is_the_best_of_all_designs(number, monkeypatch):
    system = random_system(number)
    assert value(system) == pytest.approx(enumerated(system, monkeypatch), rel=1e-6)


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


def test_engines_that_fit_alone_but_not_together_are_no_plan():
    """A part with room for the learner, or for the tree, and for half of the other."""
    pins = dict.fromkeys((*REPLAY, "update"), "fpga")
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
    others = tuple(d for d in system.platform.devices if d.name != "fpga")
    crowded = replace(system, platform=replace(system.platform, devices=(*others, small)))
    with pytest.raises(
        pearl.InfeasibleError, match=r"do not fit together on the simulated fpga: all"
    ):
        pearl.plan(crowded)


def replace_capacity(capacity: int) -> Kernel:
    return kernel(DRAWS.kind, {**DRAWS.dims, "capacity": capacity})


@pytest.mark.parametrize("name", ["sac_pendulum", "td3_pendulum"])
def test_a_plan_says_which_devices_run_what_no_engine_computes(name):
    system = pearl.load(name, set={"platform": "cpu_gpu_fpga"})
    note = pearl.plan(system).note
    kind = name.split("_")[0]
    assert (
        f"the simulated fpga does not run update: the engines compute DQN and DDPG; update.{kind}"
        in (note)
    )
    assert "runs on CPUs and GPUs" in note


def test_designs_are_written_to_a_new_or_an_empty_folder(tmp_path: Path) -> None:
    assert check_folder(tmp_path) == tmp_path
    assert check_folder(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(pearl.SpecError, match="must be a new or an empty folder"):
            check_folder(taken)
