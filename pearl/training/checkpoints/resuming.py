"""Resuming: the session of a checkpoint, and the changes of the spec that a run accepts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.planning.plans import pearl_version, plain
from pearl.runtime.protocol.control_block import BEGIN
from pearl.runtime.protocol.single_lane import PART, STOP, is_interruptible
from pearl.training.checkpoints import checkpoint, restoring
from pearl.training.checkpoints.state import RunState
from pearl.training.compiled import recompile
from pearl.training.session import ResumePoint, Session

FIXED = ("train.seed",)
"""Keys of `train` that may not change. All others of `train` may; keys outside `train` may not."""


def check_spec(before: Mapping[str, Any], now: Mapping[str, Any], file: Path) -> None:
    """Check that only keys of `train` other than its seed have changed.

    before: the spec in the checkpoint.

    Raises:
        SpecError: every other key that changed.
    """
    old, new = _flatten(before), _flatten(now)
    changed = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
    refused = [k for k in changed if not k.startswith("train.") or k in FIXED]
    if refused:
        raise SpecError(
            *(
                f"{file}: {k} was {old.get(k)!r} and is now {new.get(k)!r}; a run keeps the "
                "spec that it began with; only keys of train other than seed may change"
                for k in refused
            )
        )


def check_seed(before: int, asked: int | None, file: Path) -> None:
    """Check that a requested seed equals the seed of the run.

    Raises:
        SpecError: the seeds differ.
    """
    if asked is not None and asked != before:
        raise SpecError(
            f"{file}: the run began with seed {before}, and seed {asked} was given; a run keeps "
            "its random streams: omit the seed, or start another run in another folder"
        )


def total_steps(
    state: RunState, per: int, steps: int | None, in_spec: int, spec_now: int, file: Path
) -> tuple[int, int]:
    """Return the env steps of the run from now on, and the env steps that were planned before.

    per: env steps of an iteration.
    steps: requested; None: not given. Then the spec's count holds if it has changed since the run
        began (`in_spec`) or if the run had come to its end; else the count before.
    in_spec, spec_now: env steps in the spec of the checkpoint, and in the present spec.

    Raises:
        SpecError: fewer than are done.
    """
    before, done, total = state.total_steps, state.iteration, steps
    if total is None and spec_now != in_spec:
        total = spec_now
    elif total is None:
        total = before if done < -(-before // per) else max(before, spec_now)
    if -(-total // per) < done:
        raise SpecError(
            f"{file}: the run has done {done * per} env steps, and {total} were given; a run "
            f"cannot go back: give {done * per} or more"
        )
    return total, before


def resume(
    session: Session,
    stored: checkpoint.CheckpointFile,
    steps: int | None,
    *,
    seed: int | None,
    own_plan: bool,
) -> Session:
    """Load a checkpoint; return the session that continues its run.

    steps, seed: requested by the user; None: not given.
    own_plan: continue with the plan of the checkpoint, in a new session if that plan is another.

    Raises:
        SpecError: the run cannot continue from this checkpoint.
    """
    c, file, about = session.compiled, stored.path, stored.about
    check_spec(about["spec"], plain(c.system.raw), file)
    check_seed(about["seed"], seed, file)
    state, per = RunState.from_json(about["progress"], f"{file}: progress"), c.graph.env_steps
    in_spec, spec_now = about["spec"]["train"]["steps"], c.system.train.steps
    total, before = total_steps(state, per, steps, in_spec, spec_now, file)
    state.total_steps = total
    same_plan = about["plan"] == c.plan.to_json()
    if own_plan and not same_plan:
        session = Session(recompile(about, c.system, file, emulate=c.emulate), session.seed)
    try:
        constants = session.load_checkpoint(stored, total)
    except SpecError as error:
        if same_plan or own_plan:
            raise
        way = f"{file}: the plan of the checkpoint differs from the given one; leave --plan out"
        raise SpecError(*error.problems, way) from None
    session.state = state
    reset: list[str] = []
    if total != before:
        reset = sorted(n for n, a in constants.items() if (session.arrays[n] != a).any())
        for name in reset:
            session.arrays[name][...] = constants[name]
        text = f"env step {state.iteration * per}: the run is now to end at {total} env steps"
        names = f"; changed accordingly: {', '.join(reset)}" if reset else ""
        state.log.announce(f"{text}, no longer at {before}{names}")
    session.resume_point = ResumePoint(stored, about["environments"], tuple(reset))
    _check_under_way(session, file, own_plan=same_plan or own_plan)
    if restoring.CURSOR in session.arrays and restoring.CURSOR not in stored.places:
        _refill_replay(session)
    if about["pearl_version"] != pearl_version():
        state.log.note(
            f"{file} was written by pearl {about['pearl_version']}, and pearl "
            f"{pearl_version()} resumes it: the run may differ from an uninterrupted one",
            restarts=0,
        )
    return session


def _check_under_way(session: Session, file: Path, *, own_plan: bool) -> None:
    """Check that the lanes can continue the unfinished iteration of a checkpoint, if any.

    own_plan: the lanes are those of the plan in the checkpoint.
    """
    protocol, state = session.compiled.protocol, session.state
    if state.under_way and not own_plan:
        raise SpecError(
            f"{file}: was written during an iteration, which only its own plan can complete: "
            "leave --plan out"
        )
    needed = {PART} if protocol.is_single_lane else {BEGIN, *(t.name for t in protocol.graph.tasks)}
    done = int(session.arrays[STOP][1]) if STOP in session.arrays else 0
    kernels = [job.kernel for job in session.compiled.jobs.values()]
    steps = max((k.dim("steps") for k in kernels if is_interruptible(k)), default=1)
    if done >= steps:
        raise SpecError(
            f"{file}: {STOP} counts {done} gradient steps of a firing as done; a firing of this "
            f"plan has {steps}"
        )
    unfinished = bool(state.under_way) or done > 0
    if state.under_way.keys() != (needed if unfinished else set()):
        raise SpecError(
            f"{file}: progress: under_way has {sorted(state.under_way)}; by {STOP}, "
            f"{sorted(needed) if unfinished else 'nothing'} is needed"
        )


def _refill_replay(session: Session) -> None:
    """Continue from a checkpoint without its replay.

    Nothing is under way, external environments start again, and learning waits until the replay is
    as full as it first was.
    """
    c, state, point = session.compiled, session.state, session.resume_point
    assert point
    starts = c.system.algorithm.learning_starts
    warm = state.refilled - (-starts // c.graph.env_steps)
    state.learnt = state.learning_iterations(warm)
    state.refilled = state.drained = state.iteration
    state.under_way = {}
    if STOP in session.arrays:
        session.arrays[STOP][:] = 0
    if "any_order.acted" in session.arrays:
        session.arrays["any_order.acted"][:] = 0
    state.log.announce(
        f"{point.stored.path} holds no replay: learning continues after {starts} env "
        "steps have refilled the replay, and the run will differ from an uninterrupted one",
    )
    session.resume_point = ResumePoint(
        point.stored, None, (*point.reset, "env.", "any_order.", STOP)
    )


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return found
