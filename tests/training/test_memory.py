"""A replay beyond the memory of this host: `check` warns, training says so before it allocates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pearl.errors import SpecError
from pearl.spec.reading import load
from pearl.spec.system import System
from pearl.training import memory
from pearl.training.trainer import Trainer
from pearl_devices import kernel
from pearl_devices.buffers import allocate
from pearl_devices.system import host_system
from tests.cli.test_cli import Ran
from tests.lanes import planned

SPEC = {"algorithm": {"name": "dqn", "env": "CartPole-v1", "replay": {"capacity": 1000},
                      "num_envs": 2, "hidden": [64, 64], "batch_size": 8, "learning_starts": 8},
        "train": {"steps": 100}}  # fmt: skip


def sized(capacity: int) -> System:
    found: System = load(SPEC, set={"algorithm.replay.capacity": capacity})
    return found


def free(monkeypatch: pytest.MonkeyPatch, left: float | None, swap: float = 0.0) -> None:
    monkeypatch.setattr(host_system, "free_bytes", lambda: (left, swap))


def replay_bytes(capacity: int) -> float:
    from pearl.algorithms import algorithm

    return float(algorithm("dqn").graph(sized(capacity)).states["replay"])


def test_check_warns_of_a_replay_beyond_the_memory_that_is_free(monkeypatch, tmp_path) -> None:
    size = replay_bytes(100_000)
    free(monkeypatch, size)
    assert memory.memory_warning(sized(100_000)) is None
    free(monkeypatch, size - 1, swap=1e12)  # a replay in swap is no replay
    said = memory.memory_warning(sized(100_000))
    assert said is not None
    assert said.startswith(
        f"algorithm.replay.capacity: given 100000; the replay takes {size:.3g} bytes, and "
        f"{size - 1:.3g} bytes of this host's memory are free now: lower it to at most 99000, or"
    )
    free(monkeypatch, None)
    assert memory.memory_warning(sized(2**31)) is None
    free(monkeypatch, 1.0)
    elsewhere = replace(
        sized(1000), platform=load("dqn_cartpole", set={"platform": "cpu_gpu"}).platform
    )
    assert memory.memory_warning(elsewhere) is None
    assert memory.memory_warning(load("q_learning_frozenlake")) is None
    ran = Ran("check", "dqn_cartpole", "--json", str(tmp_path / "c.json"))
    assert "warning: algorithm.replay.capacity: given" in ran.out
    assert ran.status == 0
    ran = Ran("check", "q_learning_frozenlake")
    assert "warning" not in ran.out


def test_training_by_a_plan_says_that_the_memory_is_too_small(monkeypatch, tmp_path) -> None:
    system, plan = planned(SPEC)
    free(monkeypatch, 1000.0, swap=20.0)
    folder = tmp_path / "run"
    with pytest.raises(SpecError) as caught:
        Trainer(system, plan).train(out=folder)
    (line,) = caught.value.problems
    assert line.startswith("memory: the arrays of this run take at least ")
    assert "1.02e+03 bytes of memory and swap are free; its replay takes " in line
    assert "lower algorithm.replay.capacity (1000), or train on another machine" in line
    assert not (folder / "plan.json").exists()
    need = float(line.split("at least ")[1].split()[0])
    free(monkeypatch, need - replay_bytes(1000) / 2)
    with pytest.raises(SpecError, match=r"capacity \(1000\) to at most [45]\d0, or train on"):
        Trainer(system, plan).train()
    free(monkeypatch, 2.0 * need)
    assert Trainer(system, plan).train().status == "done"


def test_arrays_are_allowed_up_to_what_is_free(monkeypatch) -> None:
    k = kernel("replay_insert", envs=2, obs=3, act=0, capacity=64, prioritised=0, fanout=8)
    sizes = {name: array.nbytes for name, array in allocate([k]).items()}
    total = sum(sizes.values())
    rest = sum(size for name, size in sizes.items() if not name.startswith("replay."))
    assert 0 < rest < total
    free(monkeypatch, total - 8.0, swap=8.0)
    with memory.explaining_memory_errors([k, k], 64):
        pass
    for left, more in ((total - 1, " to at most 6"), (rest + 1, " to at most 0"), (rest, "")):
        free(monkeypatch, float(left))
        with pytest.raises(SpecError) as caught, memory.explaining_memory_errors([k, k], 64):
            pass
        assert f"lower algorithm.replay.capacity (64){more}" in str(caught.value)
        assert str(caught.value).count("at most") == bool(more)


def test_memory_that_the_system_refuses_is_a_sentence(monkeypatch) -> None:
    system, plan = planned(SPEC)
    free(monkeypatch, None)

    def refused(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pearl.training.session.buffers.allocate", refused)
    with pytest.raises(SpecError, match=r"system does not give this process enough memory .*low"):
        Trainer(system, plan).train()
    with pytest.raises(OSError, match="x"), memory.explaining_memory_errors([], None):
        raise OSError(5, "x")
    with pytest.raises(SpecError, match="fewer environments or smaller networks"):  # noqa: SIM117
        with memory.explaining_memory_errors([], None):
            raise OSError(12, "Cannot allocate memory")
