"""A kernel kind of the user's own: planned, timed, trained, and refused in a sentence if faulty."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pearl
from examples import rnd
from pearl.errors import SpecError
from pearl.graph.insertion import inserted
from pearl.graph.task_graph import Task
from pearl.testing import KernelKindContract
from pearl_devices import Kernel, cpu, kernel
from pearl_devices.base import KernelFailed, KernelKindError
from pearl_devices.kernels import KINDS
from pearl_estimators import roofline
from pearl_estimators.host import user_code_timing
from pearl_estimators.sealed_files import CalibrationError
from tests.lanes import SECONDS, differing, planned, replay_spec, trained

ROOT = Path(__file__).parents[2]
SIZES = {"envs": 8, "obs": 2, "hidden": 64}
SMALL: dict[str, Any] = {
    "algorithm": {
        "name": "examples.rnd", "env": "MountainCar-v0", "num_envs": 8, "hidden": [16],
        "batch_size": 16, "replay_ratio": "1/4", "learning_starts": 64,
        "replay": {"capacity": 4000, "kind": "uniform"},
    },
    "platform": "cpu_gpu",
    "limits": {"max_lanes": 1},
    "train": {"steps": 4000, "evaluate_every": 0, "final_episodes": 0},
}  # fmt: skip


class TestBonus(KernelKindContract):
    kernel = kernel("examples.rnd:BONUS", SIZES, args={"scale": 1.0})


def test_the_example_is_whole_in_less_than_ninety_lines() -> None:
    assert len((ROOT / "examples/rnd.py").read_text().splitlines()) < 90


def test_the_bonus_falls_where_the_agent_has_been_and_is_in_the_reward_that_is_stored() -> None:
    trainer = pearl.compile(SMALL, emulate=True)
    assert trainer.plan.task("bonus").device == "cpu"
    assert [f.name for f in trainer.graph.fusions] == ["learn"]
    assert trainer.train().status == "done"
    a = trainer.session.arrays
    stored = a["replay.reward"] + 1.0  # every step of MountainCar is rewarded with -1
    assert stored.min() >= 0
    assert stored[:80].mean() > 0.2  # nothing is known yet
    assert stored[-800:].mean() < 0.1 * stored[:80].mean()
    visited = dict(a)
    visited["step.next_obs"] = a["replay.next_obs"][-8:]
    elsewhere = {**visited, "step.next_obs": np.full((8, 2), 5.0, np.float32)}
    bonus = []
    for arrays in (visited, elsewhere):
        arrays["step.reward"] = np.zeros(8, np.float32)
        rnd.bonus(trainer.graph.task("bonus").kernel, arrays)
        bonus.append(float(arrays["step.reward"].mean()))
    assert bonus[1] > 5 * bonus[0]


def test_a_limit_may_name_its_task_and_no_other() -> None:
    spec = {**SMALL, "limits": {"max_lanes": 1, "pin": {"bonus": "cpu"}}}
    assert pearl.plan(pearl.load(spec)).task("bonus").device == "cpu"
    spec["limits"] = {"max_lanes": 1, "pin": {"bonsu": "cpu"}}
    with pytest.raises(SpecError, match=r"limits: no task 'bonsu' in the graph of .*bonus, store"):
        pearl.plan(pearl.load(spec))
    spec["algorithm"] = {**SMALL["algorithm"], "name": "dqn"}
    with pytest.raises(SpecError, match="no task 'bonsu'; allowed are act, step"):
        pearl.load(spec)


def write_page(folder: Path, *changes: str) -> None:
    """The module that docs/own_kernel.md prints, with its first text replaced by the second."""
    (code,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/own_kernel.md").read_text(), re.DOTALL
    )
    (folder / "my_package").mkdir()
    (folder / "my_package/clipped.py").write_text(code.replace(*changes) if changes else code)
    for name in ("my_package", "my_package.clipped"):
        sys.modules.pop(name, None)


def test_copies_of_a_task_see_their_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    envs = "envs=system.algorithm.num_envs)"
    write_page(tmp_path, f"{envs})", f"{envs}, environments=system.algorithm.num_envs)")
    monkeypatch.syspath_prepend(tmp_path)
    copies = dict.fromkeys(("step", "act", "clip"), 2)
    spec = replay_spec("ddpg", {"replicas": copies, "max_lanes": 3})
    spec["algorithm"]["name"] = "my_package.clipped"
    seconds = {**SECONDS, "clip": 100e-6, "step": 300e-6}
    system, plan = planned(spec, seconds=seconds, variants=("native", "python"))
    assert plan.task("clip").replicas == 2
    one, threads = (trained(system, plan, lanes) for lanes in ("one", "threads"))
    assert differing(one, threads) == []
    assert set(one.session.arrays["replay.reward"].tolist()) == {-1.0}


def test_the_page_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_page(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    acting = {**SMALL["algorithm"], "name": "my_package.clipped", "env": "Pendulum-v1"}
    trainer = pearl.compile({**SMALL, "algorithm": acting}, emulate=True)
    assert trainer.train(steps=400).status == "done"
    stored = trainer.session.arrays["replay.reward"][:400]
    assert set(stored.tolist()) <= {-1.0, 0.0}
    assert stored.min() == -1


def test_rollouts_take_a_bonus_too() -> None:
    from pearl.algorithms import algorithm

    acting = {"name": "ppo", "env": "MountainCar-v0", "num_envs": 8}
    system = pearl.load({"algorithm": acting, "platform": "cpu_gpu"})
    loop = algorithm("ppo").graph(system)
    task = Task("bonus", TestBonus.kernel, writes=("rnd",))
    graph = inserted(loop, task, after="step", before="store")
    assert graph.repetition["bonus"] == graph.repetition["step"]
    assert graph.states["rnd"] == 4 * (8 + 2 * (2 * 64 + 64 * 32))
    assert graph.fusions == ()
    (edge,) = [e for e in graph.edges if (e.src, e.dst) == ("bonus", "store")]
    assert edge.bytes == 4 * 8  # the rewards


def test_a_place_that_a_task_cannot_have_is_said_with_those_it_can() -> None:
    from pearl.algorithms import algorithm

    loop = algorithm("examples.rnd").graph(pearl.load(SMALL))
    task = Task("other", TestBonus.kernel)
    with pytest.raises(SpecError, match="other cannot be put between learn and act") as said:
        inserted(loop, task, after="learn", before="act")
    places = str(said.value).partition("as in ")[2].split(", ")
    assert "act → step" in places
    for place in places:
        after, before = place.split(" → ")
        found = inserted(loop, task, after=after, before=before)
        assert found.repetition["other"] == loop.repetition[after] == loop.repetition[before]


def test_without_a_count_the_bytes_of_its_arrays_are_its_work() -> None:
    k = TestBonus.kernel
    learned = 4 * (2 * 64 + 64 * 32)
    assert (k.flops, k.resident_bytes) == (0, 0)
    assert k.bytes_in == 4 * (8 + 8 * 2 + 8) + 2 * learned
    assert k.bytes_out == 4 * (8 + 8) + learned


@pytest.mark.usefixtures("user_code_in_a_process")
def test_it_is_timed_where_it_runs_and_assumed_elsewhere() -> None:
    found = user_code_timing.time_user_kernel(TestBonus.kernel, "python")
    assert found.rung == "measured"
    assert 0.0 <= found.low_s <= found.latency_s <= found.high_s
    assert 1e-6 < found.latency_s < 1e-2
    sheet = pearl.load(SMALL).platform.device("cpu")
    guess = roofline.cpu_roofline(TestBonus.kernel, sheet, "python", 1e9)
    assert "never timed on such a CPU" in guess.source
    assert guess.low_s < found.latency_s < guess.high_s


def test_actors_of_uneven_speed_are_refused_with_the_task() -> None:
    limits = {"replicas": {"step": 2, "act": 2}, "any_order": True, "max_lanes": 3}
    with pytest.raises(SpecError, match=r"any_order: bonus works on transitions before they are"):
        pearl.plan(pearl.load({**SMALL, "platform": "host", "limits": limits}))


RECORD = """
from pearl_devices.kernels import KernelKind
def fine(kernel, arrays): pass
def raises(kernel, arrays): raise RuntimeError("no such luck")
def arrays(k): return {"step.reward": ((k.dim("envs"),), "float32")}
GIVEN = dict(arrays=arrays, writes=("step.reward",), variants={"python": "faulty:fine"})
OTHER = 3
KIND = KernelKind(**{**GIVEN, **CHANGES})
"""


def write(folder: Path, changes: str) -> None:
    (folder / "faulty.py").write_text(RECORD.replace("CHANGES", changes))
    sys.modules.pop("faulty", None)
    from pearl_devices.kernels import _own

    _own.cache_clear()


FAULTS = {
    "{'arrays': 3}": r"faulty:KIND: arrays fails: TypeError",
    "{'arrays': lambda k: {}}": r"faulty:KIND: arrays gives {}; it must be a dict",
    "{'arrays': lambda k: {'a': 4}}": r"arrays gives 4 for a; it must be a tuple of whole numbers",
    "{'arrays': lambda k: {'a': ((2,), 'text')}}": r"arrays gives \(\(2,\), 'text'\) for a",
    "{'arrays': lambda k: {'a': ((k.dim('rows'),), 'int64')}}": r"has no size 'rows'",
    "{'writes': ()}": r"writes is empty; it must name the arrays",
    "{'writes': 'step.reward'}": r"writes is 'step.reward'; a tuple of names",
    "{'writes': ('reward',)}": r"writes has 'reward', which is none of its arrays \['step",
    "{'variants': {}}": r"variants is empty; it needs one",
    "{'variants': {'python': 'nowhere.at_all:bonus'}}": r"nowhere.at_all:bonus: No module named",
    "{'variants': {'python': 'faulty:gone'}}": r"python: faulty:gone: .*no attribute 'gone'",
    "{'variants': {'python': 'faulty:OTHER'}}": r"faulty:OTHER: it is of type int",
    "{'variants': {'python': 'os:abort'}}": r"os is a module of Python's standard library",
    "{'structure': 'insert'}": r"structure is 'insert'; leave it out",
    "{'count': lambda k: 3}": r"count fails: TypeError",
    "{'count': lambda k: (1, 2, 3, -1)}": r"count gives \(1, 2, 3, -1\); it must give flops",
    "{'lanes': 3}": r"its module cannot be imported: .*unexpected keyword argument 'lanes'",
}


@pytest.mark.parametrize("changes", FAULTS)
def test_a_faulty_record_is_one_sentence_that_names_it(changes, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, changes)
    with pytest.raises(KernelKindError, match=FAULTS[changes]) as found:
        kernel("faulty:KIND", envs=4)
    assert "\n" not in str(found.value)


def test_a_function_that_cannot_be_bound_or_fails_names_itself(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    arrays = {"step.reward": np.zeros(4, np.float32)}
    for changes, error, text in (
        ("{'variants': {'native': 'faulty:raises'}}", KernelKindError, "cannot be bound: Runtime"),
        (
            "{'variants': {'native': 'faulty:fine'}}",
            KernelKindError,
            "returns None; it must be a fu",
        ),
        (
            "{'variants': {'python': 'faulty:raises'}}",
            KernelFailed,
            "failed: RuntimeError: no such",
        ),
    ):
        write(tmp_path, changes)
        (variant,) = ("native" if "native" in changes else "python",)
        with pytest.raises(error, match=text):
            cpu.bind(kernel("faulty:KIND", envs=4), variant, arrays)()
    with pytest.raises(CalibrationError, match="faulty:raises failed: RuntimeError: no such luck"):
        user_code_timing.time_user_kernel(kernel("faulty:KIND", envs=4), "python")


def test_a_shipped_kind_may_not_hide_behind_a_path() -> None:
    with pytest.raises(KernelKindError, match="structure is 'environment'"):
        kernel("pearl_devices.kernels.environments:ENV_STEP", envs=2)
    assert Kernel("env_step").kind in KINDS
