"""A change of the plan during a run: a new session with the state of the old one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pearl import run_folder
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
from pearl.training.lane_binding import bind_lanes, reload_arrays
from pearl.training.outcome import Measurements, time_tasks
from pearl.training.session import Session
from pearl.training.training_run import TrainingRun
from pearl_devices import Buffers, UnsupportedError
from pearl_devices.base import EnvironmentFailed

PASSING = ("batch.", "step.", "act.", "loop.", "version.", "policy.", "best.")
"""Arrays whose number depends on the plan: messages between firings, of which a drained plan has
none in flight, and copies of other arrays."""


def check(session: Session, folder: Path | None) -> None:
    """Check that a run of this session can change its plan.

    Raises:
        SpecError: each reason why it never can.
    """
    problems, c = [], session.compiled
    if folder is None:
        problems.append("train: replan needs `out`, because it continues from a checkpoint")
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
            "train: replan has no other plan for limits.any_order, which fixes all places"
        )
    if problems:
        raise SpecError(*problems)


def replan(run: TrainingRun, measured: Measurements) -> None:
    """Search another plan, and switch `run` to it if it is good enough.

    Call this right after a checkpoint, without lanes. The state records the decision. The next
    lanes continue from the checkpoint in the folder in either case.
    """
    compiled, monitor, state = run.session.compiled, run.drift_monitor, run.state
    assert monitor
    newest = replanning.take_recent(run.lanes.times_ns, compiled.protocol, monitor.looks)
    rows = time_tasks(run, newest)
    problem = build_problem(compiled.system)
    state.factors |= replanning.compute_factors(problem, compiled.protocol, run.jobs, rows)
    decision = run.interruption.run_interruptibly(
        lambda: replanning.decide(problem, compiled.plan, state.factors, monitor.period_s)
    )
    monitor.weighed_s = monitor.period_s
    seen = replanning.measure_drift(compiled.plan, monitor.period_s, rows, ())
    text = f"env step {state.iteration * problem.graph.env_steps}: {drift_sentence(seen)}"
    why = "the search for another was interrupted" if decision is None else decision.why
    kept = f"{text} Plan kept: {why}."
    if decision is not None and decision.plan is not None:
        try:
            switch_plan(run, decision.plan, f"{text} Plan changed: {why}.")
        except (
            *(SpecError, UnsupportedError, OSError),
            *(single_lane.LaneError, EnvironmentFailed),
        ) as error:
            why = " ".join(str(error).split())
            kept = f"{text} Plan kept, because the run cannot continue with the better one: {why}"
            assert run.folder
            stored = checkpoint.load(run.folder / CHECKPOINT)
            # the lanes may have been drained
            restoring.restore(stored, run.arrays, compiled.graph)
        else:
            measured.times_ns = {}
            return
    _log_decision(state, kept)


def switch_plan(run: TrainingRun, plan: Plan, text: str) -> None:
    """Give `run` a session under another plan, with a checkpoint of it in the run's folder.

    Firings under way by slack are completed first. If anything fails, the checkpoint, the session
    and its state stay as they are.

    text: of the decision, for the log.

    Raises:
        SpecError: the arrays of the state are others under the new plan.
    """
    session, state, compiled = run.session, run.state, run.session.compiled
    assert run.folder
    new = Session(compile_plan(compiled.system, plan), session.seed)
    wrong = incompatible_arrays(session.arrays, new.arrays)
    if wrong:
        raise SpecError(f"its arrays differ: {', '.join(wrong)}")
    run.resume_from_checkpoint()
    assert session.resume_point
    environments = session.resume_point.environments or {}
    drain = compiled.protocol.drain
    end = state.iteration + drain
    if drain:
        with bind_lanes(session, replace(run.milestones, total=state.iteration)) as lanes:
            lanes.run(end, end)
    else:
        reload_arrays(session)
    transfer_state(
        compiled.protocol, session.arrays, end, new.compiled.protocol, new.arrays, state.iteration
    )
    steady = dict.fromkeys(state.steady, 0.0)
    after = replace(state, drained=state.iteration, replanned=True, steady=steady)
    after.decisions, after.log = [*state.decisions], replace(state.log)
    after.log.events = [*state.log.events]
    _log_decision(after, text)
    new.state, new.at, new.environments = after, state.iteration, lambda: environments
    new.save_run(run.folder)
    try:
        plan.save(run_folder.clear(run.folder, "plan.json"))
    except OSError as error:
        after.log.note(f"plan.json is the plan before: {error.strerror}", restarts=0)
    run.switch_session(new)


def _log_decision(state: RunState, text: str) -> None:
    """Record a decision among the events, and among the first EVENTS decisions."""
    state.log.note(text, restarts=0)
    if len(state.decisions) < external_envs.EVENTS:
        state.decisions.append(text)


def incompatible_arrays(old: Buffers, new: Buffers) -> list[str]:
    """Return the arrays of a run's state whose shape or type differs, or that one plan lacks."""

    def state(arrays: Buffers) -> dict[str, tuple[tuple[int, ...], str]]:
        kept = {n: a for n, a in arrays.items() if not n.startswith(PASSING)}
        return {n: (a.shape, a.dtype.name) for n, a in kept.items()}

    a, b = state(old), state(new)
    return sorted(n for n in a.keys() | b.keys() if a.get(n) != b.get(n))


def transfer_state(
    before: ExecutionSchedule,
    old: Buffers,
    reached: int,
    after: ExecutionSchedule,
    new: Buffers,
    iteration: int,
) -> None:
    """Copy the state of a run from the arrays of one plan into those of another.

    No work may be under way. Every slot of the parameters gets the newest version.

    reached: the last iteration of the old plan, including the iterations that drained it.
    iteration: the first of the new plan.
    """
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
