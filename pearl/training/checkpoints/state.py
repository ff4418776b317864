"""`RunState`: the progress of a run, which a checkpoint holds together with the arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any

from pearl.errors import SpecError
from pearl.runtime.environments.external_envs import FailureLog


@dataclass
class RunState:
    """The progress of a run: everything in a checkpoint except the arrays.

    iteration: iterations done.
    best_mean, last_mean: mean return of the best and the latest evaluation; None before one.
    last_low, last_high: lowest and highest return of an episode of the latest evaluation.
    wall_s, cpu_s: of iterations, without evaluation and checkpoints.
    drained: iteration before which no channel has work under way, because a run or a plan ended
        there.
    total_steps: env steps of the whole run; its schedules depend on them.
    evaluation_due: the evaluation at `iteration` was interrupted.
    judging: iteration of the policy that a worker evaluates; 0: no evaluation is under way.
    evaluation_cuts: episodes that evaluations have cut.
    log: failures that were recovered from, and notes.
    steady: seconds, env steps and updates since rates are counted.
    factors: measured / estimated seconds, by kernel family and variant.
    decisions: sentences about re-planning.
    replanned: whether the plan changed.
    refilled: iteration from which the replay was filled; above 0 if a checkpoint had no replay.
    learnt: iterations with gradient steps before `refilled`.
    spent: parts of the run's time, named as in `pearl.training.run_clock`.
    under_way: how far the lanes are in an unfinished iteration (`lane_binding.Lanes`).
    """

    iteration: int = 0
    best_mean: float | None = None
    last_mean: float | None = None
    last_low: float | None = None
    last_high: float | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0
    drained: int = 0
    total_steps: int = 0
    evaluation_due: bool = False
    judging: int = 0
    evaluation_cuts: int = 0
    log: FailureLog = field(default_factory=FailureLog)
    steady: dict[str, float] = field(
        default_factory=lambda: {"wall_s": 0.0, "cpu_s": 0.0, "env_steps": 0, "updates": 0}
    )
    factors: dict[str, float] = field(default_factory=dict)
    decisions: list[str] = field(default_factory=list)
    replanned: bool = False
    refilled: int = 0
    learnt: int = 0
    spent: dict[str, float] = field(default_factory=dict)
    under_way: dict[str, int] = field(default_factory=dict)

    def learning_iterations(self, warm: int) -> int:
        """Return the iterations with gradient steps so far.

        warm: the iteration from which this run takes gradient steps.
        """
        return self.learnt + max(self.iteration - warm, 0)

    @staticmethod
    def from_json(progress: Mapping[str, Any], where: str) -> RunState:
        """Read the state in a checkpoint; its failure is cleared.

        progress: from the checkpoint's description. Unknown keys are ignored and noted in `log`.

        Raises:
            SpecError: a line for every key that is missing or has a wrong value, beginning with
                `where`.
        """
        problems: list[str] = []
        values = _values(RunState, progress, where, problems)
        log = progress.get("log")
        if not isinstance(log, Mapping):
            problems.append(f"{where}: log is {log!r}; an object is needed")
            log = {}
        values["log"] = FailureLog(**_values(FailureLog, log, f"{where}: log", problems))
        steady = RunState().steady
        if "steady" in values and not values["steady"].keys() >= steady.keys():
            problems.append(f"{where}: steady has {list(values['steady'])}, {list(steady)} needed")
        if problems:
            raise SpecError(*problems)
        state = RunState(**values)
        state.log.failure = None
        unknown = sorted(progress.keys() - values.keys())
        if unknown:
            state.log.note(f"{where}: {', '.join(unknown)}: not known here, left out", restarts=0)
        return state


def _values(
    kind: type, given: Mapping[str, Any], where: str, problems: list[str]
) -> dict[str, Any]:
    """Read the values of a dataclass's fields, except fields that are dataclasses."""
    found = {}
    for f in fields(kind):
        if f.type == "FailureLog":
            continue
        what, fits = KINDS[str(f.type)]
        if f.name not in given and f.name in LATER:
            continue
        if f.name not in given:
            problems.append(f"{where}: key {f.name!r} is missing; {what} is needed")
        elif not fits(given[f.name]):
            problems.append(f"{where}: {f.name} is {given[f.name]!r}; {what} is needed")
        else:
            found[f.name] = given[f.name]
    return found


LATER = ("spent", "under_way", "judging", "last_low", "last_high")
"""Keys that a checkpoint of the same format may lack, which an earlier version wrote."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "int": ("a count", _is_count),
    "int | None": ("a count or null", lambda v: v is None or _is_count(v)),
    "float": ("a number", _is_number),
    "float | None": ("a number or null", lambda v: v is None or _is_number(v)),
    "bool": ("true or false", lambda v: type(v) is bool),
    "str | None": ("a text or null", lambda v: v is None or isinstance(v, str)),
    "list[str]": (
        "a list of texts",
        lambda v: isinstance(v, list) and all(isinstance(i, str) for i in v),
    ),
    "dict[str, int]": (
        "an object of counts",
        lambda v: isinstance(v, Mapping) and all(map(_is_count, v.values())),
    ),
    "dict[str, float]": (
        "an object of numbers",
        lambda v: isinstance(v, Mapping) and all(map(_is_number, v.values())),
    ),
}
"""Type of a field, as written → its description, and whether a value has this type."""
