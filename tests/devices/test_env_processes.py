"""Environments in processes of their own: the bits of one after the other, at the same time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl.runtime.environments import external_envs
from pearl_devices import Buffers, UnsupportedError, backend, kernel
from pearl_devices.buffers import allocate
from pearl_devices.primitives.envs.env_step import EnvStep
from pearl_devices.primitives.envs.gym_envs import env_step_of
from tests.processes import until_gone


def bound(name: str, variant: str, envs: int = 4, **args: Any) -> tuple[EnvStep, Buffers]:
    k = kernel(
        *("env_step", {"envs": envs, "obs": 3, "act": 0}),
        program=f"tests.devices.process_envs:{name}",
        args=args,
    )
    buffers = allocate([k])
    buffers["rng.env_step"][0] = 7
    found = env_step_of(backend("cpu").bind(k, variant, buffers))
    assert found is not None
    return found, buffers


def stepped(step: EnvStep, buffers: Buffers, times: int, seed: int = 0) -> list[Buffers]:
    """The arrays after each call, with actions by the seed."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(times):
        buffers["act.action"][:] = rng.integers(0, 2, step.envs)
        step()  # type: ignore[operator]
        found.append({name: array.copy() for name, array in buffers.items()})
    return found


def test_they_give_the_bits_of_environments_that_are_stepped_in_turn_and_come_back_so() -> None:
    """Whichever way they were stepped when they were kept."""
    ways = {v: bound("Walk", v) for v in ("gymnasium", "processes")}
    first = {v: stepped(*way, 40) for v, way in ways.items()}
    assert sum(int(row["step.terminated"].sum()) for row in first["gymnasium"]) > 5
    for one, other in zip(*first.values(), strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    kept = {v: (way[0].snapshot(), first[v][-1]) for v, way in ways.items()}
    assert kept["gymnasium"][0] == kept["processes"][0]
    further = stepped(*ways["gymnasium"], 10, seed=1)
    for states, arrays in kept.values():
        again, buffers = bound("Walk", "processes")
        for name, array in arrays.items():
            buffers[name][...] = array
        again.restore(states)
        for one, other in zip(further, stepped(again, buffers, 10, seed=1), strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in one)


def test_all_are_in_their_steps_at_the_same_time_and_end_with_the_call(tmp_path: Path) -> None:
    step, buffers = bound("Meeting", "processes", folder=str(tmp_path), size=4)
    stepped(step, buffers, 3)
    pids = {int(file.name.partition("-")[2]) for file in tmp_path.iterdir()}
    assert len(pids) == 4
    del step
    until_gone(pids)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("fault", ["exit", "raise", "block"])
def test_one_that_fails_is_named_and_made_anew(fault: str, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    step, buffers = bound("Walk", "processes", fault=fault, armed=str(armed))
    events: list[str] = []
    step.on_failure = lambda text, lost: events.append(f"{lost} lost: {text}")
    stepped(step, buffers, 2)
    armed.touch()
    with external_envs.interrupting_overdue_envs(
        {"step": step}, 3.0 if fault == "block" else 600.0
    ):
        stepped(step, buffers, 2)
    why = {
        "exit": "RuntimeError: its process has ended",
        "raise": "RuntimeError: Diverged: x 3",
        "block": "TimeoutError: it has not answered for 3 s",
    }[fault]
    (event,) = events
    where = r"environment 'tests.devices.process_envs:Walk', number \d, episode 1, step 3"
    assert re.fullmatch(rf"1 lost: {where}: {why}.*", event)
    assert not Path(armed).exists()


def test_what_cannot_be_made_in_a_process_is_said() -> None:
    with pytest.raises(UnsupportedError, match="is a vector environment"):
        bound("Batch", "processes")
    with pytest.raises(UnsupportedError, match="cannot be made"):
        bound("Nothing", "processes")
