"""What parts of a run answer: numbers by hand, and every sentence of a refusal, whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace as Given
from typing import Any

import numpy as np
import pytest

from pearl.training import training_run
from pearl.training.checkpoints import restoring, resuming
from pearl.training.checkpoints.state import RunState
from tests.answers import check, titles
from tests.training.test_checkpoint import PROGRESS

INTO = {**{f"replay.{n}": np.zeros((8, 2)) for n in ("obs", "reward", "truncated")},
        **{f"replay.{n}": np.zeros(5) for n in ("frame", "depth", "last", "last_row")},
        "replay.cursor": np.zeros(2, np.int64), "replay.clock": np.zeros(2, np.int64)}  # fmt: skip


def state(**changes: Any) -> list[Any]:
    """The values of these keys in a state that is read."""
    read = RunState.from_json({**PROGRESS, **changes}, "c")
    return [getattr(read, key) for key in changes]


def milestones(steps: int, starts: int, evaluate: int, every: int, refilled: int = 0) -> Any:
    """Those of a run of so many env steps, of which an iteration has 8."""
    system = Given(algorithm=Given(learning_starts=starts), train=Given(evaluate_every=evaluate))
    if not starts:
        del system.algorithm.learning_starts
    compiled = Given(system=system, graph=Given(env_steps=8))
    given = Given(compiled=compiled, state=RunState(total_steps=steps, refilled=refilled))
    return astuple(training_run._milestones(given, every))  # type: ignore[arg-type]


def total(done: int, had: int, steps: int | None, in_spec: int, now: int) -> tuple[int, int]:
    """Env steps of a run that goes on after `done` iterations of 8, and those planned before."""
    before = RunState(iteration=done, total_steps=had)
    return resuming.total_steps(before, 8, steps, in_spec, now, Path("c"))


def counts(cursor: Any, clock: Any = None) -> Any:
    """The rows of a stored replay, or what is wrong with its counts."""
    given = {"replay.cursor": np.array(cursor)}
    given |= {} if clock is None else {"replay.clock": np.array(clock)}
    stored: Any = Given(places=given, read=given.__getitem__)
    rows, why = restoring._read_counts(stored, INTO, 2)
    assert (why is None) or not rows
    return why or {name.removeprefix("replay."): count for name, count in rows.items()}


class Firings:
    """What `take_recent` needs of a protocol."""

    def __init__(self, repetition: Mapping[str, int]) -> None:
        self.graph, self.repetition = self, repetition


FILE = Path(__file__).parent / "answers.txt"


@pytest.mark.parametrize("title", titles(FILE))
def test_parts_of_a_run_answer_what_is_kept(title: str, request: pytest.FixtureRequest) -> None:
    check(FILE, title, globals(), write=request.config.getoption("--write"))
