"""A change of the plan amid a run: a new session with the state of the old one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pearl.errors import SpecError
from pearl.planner.planner import build_problem
from pearl.planning.plans import Plan
from pearl.planning.runs import CHECKPOINT
from pearl.report.tables import drift_sentence
from pearl.runtime.environments import external_envs
from pearl.runtime.protocol import channels, single_lane
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.training import replanning
from pearl.training.checkpoints import checkpoint, restoring
from pearl.training.checkpoints.state import RunState
from pearl.training.compiled import compile_plan
from pearl.training.loop_context import LoopContext
from pearl.training.milestones import Milestones
from pearl.training.outcome import timings
from pearl.training.session import ResumePoint, Session
from pearl_devices import Buffers, UnsupportedError
from pearl_devices.base import EnvironmentFailed

PASSING = ("batch.", "step.", "act.", "loop.", "version.", "policy.", "best.")
"""Arrays that another plan may lack or have more of: what one firing tells another, of which
nothing is under way once a plan is drained, and copies of what is kept elsewhere."""


def check(session: Session, folder: Path | None) -> None:
    """SpecError where a run of this session can never change its plan."""
    problems, c = [], session.compiled
    if folder is None:
        problems.append("train: replan needs `out`: it goes on from a checkpoint")
    if c.system.train.checkpoint_every == 0:
        problems.append(
            "train: replan happens at checkpoints, and train.checkpoint_every is 0; set it"
        )
    if c.emulate:
        problems.append(
            "train: replan compares measured times, and an emulated run has none; leave one out"
        )
    if c.system.limits.any_order:
        problems.append(
            "train: replan has no other plan for limits.any_order, which says who runs where"
        )
    if problems:
        raise SpecError(*problems)


def replan(
    session: Session,
    loop: LoopContext,
    state: RunState,
    times_ns: Mapping[str, list[int]],
    folder: Path,
) -> tuple[Session, RunState] | None:
    """The session and the state that go on under another plan; None: the present plan is kept.

    To be called at the checkpoint just written to `folder`, without lanes. The next lanes go on
    from the checkpoint in `folder` either way. The decision is noted in the state.
    """
    c, watch = session.compiled, loop.drift_monitor
    assert watch
    newest = replanning.recent(times_ns, c.protocol, watch.looks)
    rows = timings(loop, c.protocol.plan, newest)
    problem = build_problem(c.system)
    graph = problem.graph
    state.factors |= replanning.factors(problem, c.protocol, loop.jobs, rows)
    found = loop.interruption.unless_asked(
        lambda: replanning.decide(problem, c.plan, state.factors, watch.period_s)
    )
    watch.weighed_s = watch.period_s
    shown = replanning.drift(c.plan, watch.period_s, rows, ())
    text = f"env step {state.iteration * graph.env_steps}: {drift_sentence(shown)}"
    why = "the search for another was interrupted" if found is None else found.why
    kept = f"{text} Plan kept: {why}."
    if found is not None and found.plan is not None:
        try:
            changed = f"{text} Plan changed: {found.why}."
            return changed_to(found.plan, session, loop.milestones, state, folder, changed)
        except (
            *(SpecError, UnsupportedError, OSError),
            *(single_lane.LaneError, EnvironmentFailed),
        ) as error:
            why = " ".join(str(error).split())
            kept = f"{text} Plan kept, though there is a better one, for it cannot go on: {why}"
            stored = checkpoint.load(folder / CHECKPOINT)
            restoring.restore(stored, session.arrays, c.graph)  # the lanes may have been drained
    _decided(state, kept)
    return None


def changed_to(
    plan: Plan, session: Session, milestones: Milestones, state: RunState, folder: Path, text: str
) -> tuple[Session, RunState]:
    """A session under another plan and its state, with a checkpoint of both in `folder`.

    Firings under way by slack are completed first. If anything fails, the checkpoint and `state`
    stay as they are.
    """
    c = session.compiled
    new = Session(compile_plan(c.system, plan, c.graph), session.seed)
    wrong = misfits(session.arrays, new.arrays)
    if wrong:
        raise SpecError(f"its arrays are others: {', '.join(wrong)}")
    resumed = ResumePoint.of(folder / CHECKPOINT)
    environments = resumed.environments or {}
    end = state.iteration + c.protocol.drain
    if c.protocol.drain:
        ending = replace(milestones, total=state.iteration)
        with session.lanes(ending, state, resumed) as lanes:
            lanes.run(end, end)
    else:
        session.again(resumed)
    carry(c.protocol, session.arrays, end, new.compiled.protocol, new.arrays, state.iteration)
    steady = dict.fromkeys(state.steady, 0.0)
    after = replace(state, drained=state.iteration, replanned=True, steady=steady)
    after.decisions, after.log = [*state.decisions], replace(state.log)
    after.log.events = [*state.log.events]
    _decided(after, text)
    new.at, new.environments = state.iteration, lambda: environments
    new.save_run(folder, after)
    try:
        plan.save(folder / "plan.json")
    except OSError as error:
        after.log.note(f"plan.json is the plan before: {error.strerror}", restarts=0)
    return new, after


def _decided(state: RunState, text: str) -> None:
    """Note a decision with the run's events and apart, up to EVENTS of them."""
    state.log.note(text, restarts=0)
    if len(state.decisions) < external_envs.EVENTS:
        state.decisions.append(text)


def misfits(old: Buffers, new: Buffers) -> list[str]:
    """The arrays of a run's state that one of two plans has and the other has not, or otherwise."""

    def state(arrays: Buffers) -> dict[str, tuple[tuple[int, ...], str]]:
        kept = {n: a for n, a in arrays.items() if not n.startswith(PASSING)}
        return {n: (a.shape, a.dtype.name) for n, a in kept.items()}

    a, b = state(old), state(new)
    return sorted(n for n in a.keys() | b.keys() if a.get(n) != b.get(n))


def carry(
    before: ExecutionSchedule,
    old: Buffers,
    reached: int,
    after: ExecutionSchedule,
    new: Buffers,
    iteration: int,
) -> None:
    """The state of a run from the arrays of one plan into those of another, whose first iteration
    is `iteration`. Nothing is under way. reached: the iteration that the old plan came to, those in
    which it was drained included. Every slot of the parameters holds the newest version."""
    for name, array in new.items():
        base = name.partition("@")[0]
        if base.startswith("policy."):
            array[...] = old[channels.latest_parameters_name(before, base, reached)]
        elif name in old and old[name].shape == array.shape:
            array[...] = old[name]
    for task in after.graph.tasks:
        versions = new.get(channels.version_array_name(task.name))
        if versions is not None:
            versions[...] = iteration * after.graph.repetition[task.name]
