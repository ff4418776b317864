"""The lanes of a session: bound to its arrays for a stretch of a run, and ended with a context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pearl.algorithms import algorithm
from pearl.algorithms.families.learners import learning_tasks as learning_tasks
from pearl.algorithms.interface import pass_first
from pearl.errors import SpecError
from pearl.planning.plans import plain
from pearl.rooms import use_room
from pearl.runtime import cpu_wait
from pearl.runtime.environments import external_envs
from pearl.runtime.protocol import channels, single_lane
from pearl.runtime.protocol.binding import Lags
from pearl.runtime.protocol.lane_recorder import UNTIMED, Sampling, plan_sampling
from pearl.runtime.protocol.residency import Residency
from pearl.spec.user_code import reporting_user_errors
from pearl.training.checkpoints import restoring
from pearl.training.compiled import HOSTINGS
from pearl.training.milestones import Milestones
from pearl.training.session import Session
from pearl_devices import UnsupportedError, platform_json

if TYPE_CHECKING:
    from pearl.cluster.remote_worker import RemoteGroup
    from pearl.runtime.lanes.engine import Engine


class Lanes(Protocol):
    """Interface between the loop and the lanes of a plan.

    is_single_lane: the plan has one lane, which stands still between two calls of `run`.
    interruptible: a stop word (`loop.stop`) makes `run` return in the middle of an iteration.
    times_ns: call → nanoseconds of its timed firings.
    lags: name → observed lag in iterations → number of firings.
    traffic: messages and bytes to and from the lanes of other hosts.
    records: where the time of each lane went, as `LaneRecorder.to_json` says.
    """

    times_ns: dict[str, list[int]]
    lags: Lags
    traffic: list[dict[str, Any]]

    @property
    def records(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def is_single_lane(self) -> bool: ...

    @property
    def interruptible(self) -> bool: ...

    def run(self, end: int, stop: int, *, timed: bool = False) -> int:
        """Run iterations up to `end`, or further up to `stop`; return the iteration reached.

        At `stop` all lanes are at the same iteration.

        timed: take the times of the calls of one iteration.
        """

    def halt(self) -> int:
        """Bring all lanes to the same iteration soon, and return that iteration.

        If `run` has returned in the middle of an iteration, the lanes stay there.
        """

    def under_way(self) -> dict[str, int]:
        """Return how far the lanes are in an unfinished iteration; empty if none is unfinished."""

    def env_steps_under_way(self) -> list[str]:
        """Describe env_steps that other processes may be doing now; for any thread."""

    def fetch(self, *beginnings: str) -> None:
        """Copy arrays from device memory, selected by the beginnings of their names."""

    def cpu_s(self) -> float:
        """Return user and system seconds so far, those of worker processes included."""

    def threads(self) -> Mapping[str, list[cpu_wait.Thread]]:
        """Return lane → the threads that run it."""


def bind_lanes(session: Session, milestones: Milestones) -> AbstractContextManager[Lanes]:
    """Bind the lanes of the plan, ready to run from the session's iteration. On exit all end.

    Binding compiles kernels and creates external environments. If the session was loaded from a
    checkpoint, binding also restores their state; those that do not come back begin new episodes,
    which the events of the run say. A step of an external environment that exceeds
    `train.env_time_limit` is interrupted; if it cannot be, the process ends.

    Raises:
        UnsupportedError: a kernel cannot be bound, or a stored environment is damaged.
        UserCodeError: code that the spec names raised an error.
        SpecError: `limits.any_order` is set and `train.lanes` is `one`.
    """
    compiled = session.compiled
    residency = Residency(
        compiled.jobs, session.arrays, partial(channels.array_name, compiled.protocol)
    )
    session.notes = residency.notes
    bind = _bind_single_lane if compiled.protocol.is_single_lane else _bind_several_lanes
    return bind(session, milestones, residency)


@contextmanager
def _bind_single_lane(
    session: Session, milestones: Milestones, residency: Residency
) -> Iterator[single_lane.SingleLaneRunner]:
    """Bind the plan's only lane, which runs in the calling thread."""
    from pearl.runtime.environments.watchdog import env_time_limit

    compiled, state = session.compiled, session.state
    with _reporting_binding_errors(session):
        steps = single_lane.bind(
            compiled.order, compiled.jobs, _learning_tasks(session), session.arrays, residency
        )
        external = {s.job.name: external_envs.external_envs_of(s.job, s.call) for s in steps}
        environments = {name: env for name, env in external.items() if env is not None}
        on_failure = external_envs.failure_listener(state.log, restart=_restarts_envs(session))
        for env in environments.values():
            env.on_failure = on_failure
        if (snapshots := _snapshots(session)) is not None:
            passing = external_envs.first_pass(compiled.graph, session.arrays)
            for text in external_envs.restore(environments, snapshots, passing):
                state.log.announce(text)
    reload_arrays(session)
    session.environments = lambda: external_envs.snapshot(environments)
    limit_s = _env_time_limit_s(session)
    with (
        ending(environments),
        env_time_limit(environments, environments, limit_s, _note_wait(session)),
    ):
        yield single_lane.SingleLaneRunner(
            steps,
            session.arrays,
            milestones.warm,
            residency,
            iteration=state.iteration,
            pace_s=_pace_s(session),
            under_way=state.under_way,
            sampling=_sampling(session, milestones),
        )


@contextmanager
def ending(environments: external_envs.Environments) -> Iterator[None]:
    """On exit, end the environments."""
    try:
        yield
    finally:
        external_envs.close(environments)


@contextmanager
def _bind_several_lanes(
    session: Session, milestones: Milestones, residency: Residency
) -> Iterator[Engine]:
    """Bind lanes in threads, processes or on other hosts."""
    from pearl.runtime.environments.watchdog import env_time_limit

    engine = _build_engine(session, milestones, residency)
    limit_s = _env_time_limit_s(session)
    with _reporting_binding_errors(session):
        engine.__enter__()
    with (
        closing(engine),
        env_time_limit(
            engine.thread_environments,
            engine.process_environments,
            limit_s,
            _note_wait(session),
        ),
    ):
        reload_arrays(session)
        session.environments = engine.environments
        with _reporting_binding_errors(session):
            engine.start(session.state.iteration, session.state.under_way)
        yield engine


def _build_engine(session: Session, milestones: Milestones, residency: Residency) -> Engine:
    """Build the engine of a plan with several lanes, in the plan's order or in any."""
    from pearl.runtime.lanes.engine import Engine
    from pearl.runtime.protocol.control_block import WorkRange
    from pearl.runtime.protocol.run_context import RunContext

    compiled, state = session.compiled, session.state
    context = RunContext(
        protocol=compiled.protocol,
        jobs=compiled.jobs,
        arrays=session.arrays,
        residency=residency,
        learning=_learning_tasks(session),
        span=WorkRange(milestones.warm, milestones.total, state.drained),
        worker_config={
            "spec": plain(compiled.system.raw),
            "platform": platform_json.to_json(compiled.system.platform),
            "plan": compiled.plan.to_json(),
            "emulate": compiled.emulate,
            "any_order": compiled.any_order,
        },
        pace_s=_pace_s(session),
        env_snapshots=_snapshots(session) or {},
        env_time_limit_s=_env_time_limit_s(session),
        restart_envs=_restarts_envs(session),
        log=state.log,
        memory=session.memory,
        remote_groups=_remote_groups(session),
        sampling=_sampling(session, milestones),
    )
    if not compiled.any_order:
        return Engine(context, compiled.hosting)
    from pearl.runtime.lanes.async_learner import AsyncEngine

    if compiled.hosting == "one":
        raise SpecError(
            "limits.any_order: each copy of the actors needs a thread or a process of its own, "
            "and train.lanes is one; set it to threads or processes"
        )
    return AsyncEngine(context, compiled.hosting, compiled.graph)


def _sampling(session: Session, milestones: Milestones) -> Sampling:
    """The rounds whose calls are timed; those of an emulated run tell nothing of its plan."""
    compiled = session.compiled
    if compiled.emulate:
        return UNTIMED
    calls = sum(len(lane.firings) for lane in compiled.protocol.lanes)
    begin = max(milestones.steady, session.state.iteration + 1)
    return plan_sampling(calls, compiled.plan.period_s, begin, milestones.total)


def _remote_groups(session: Session) -> list[RemoteGroup]:
    """The remote lane groups of the plan; none unless the lanes are hosted by Ray."""
    compiled = session.compiled
    if compiled.hosting != "ray" or not compiled.remote_groups:
        return []
    host = use_room(HOSTINGS["ray"], "training on several hosts").host_groups
    return host(compiled.protocol, compiled.remote_groups, any_order=compiled.any_order)  # type: ignore[no-any-return]


def reload_arrays(session: Session) -> None:
    """Copy the arrays of the checkpoint again, because binding resets external environments.

    No call has run since the arrays were first copied, so the replay is as it was. First
    observations of new environments pass the custom kernels that stand before the network.
    """
    point, acting = session.resume_point, session.acting
    if point:
        without = (restoring.REPLAY, *point.reset)
        restoring.restore(point.stored, session.arrays, session.compiled.graph, without=without)
    if acting and acting.interface and (not point or "env." in point.reset):
        with reporting_user_errors(session.compiled.system, "the first observations"):
            pass_first(acting, session.arrays)


@contextmanager
def _reporting_binding_errors(session: Session) -> Iterator[None]:
    """Within this context, turn errors of binding into UnsupportedError or UserCodeError."""
    with reporting_user_errors(session.compiled.system, "binding the kernels"):
        try:
            yield
        except (single_lane.LaneError, ValueError) as error:
            raise UnsupportedError(str(error)) from error


def _learning_tasks(session: Session) -> tuple[str, ...]:
    """The tasks that wait until learning starts."""
    compiled = session.compiled
    return learning_tasks(algorithm(compiled.system.algorithm.name).LEARNING, compiled.graph)


def _env_time_limit_s(session: Session) -> float:
    """The longest step of an external environment, in seconds."""
    return session.compiled.system.train.env_time_limit or external_envs.TIME_LIMIT_S


def _note_wait(session: Session) -> Callable[[str], None]:
    """Return a function that adds a sentence to the events of the run."""
    return lambda text: session.state.log.note(text, restarts=0)


def _restarts_envs(session: Session) -> bool:
    """Whether a failed environment is restarted."""
    return session.compiled.system.train.on_env_failure == "restart"


def _pace_s(session: Session) -> float | None:
    """Seconds between the beginnings of iterations; None if the plan sets no pace."""
    return None if session.compiled.emulate else session.compiled.plan.pace_s


def _snapshots(session: Session) -> Mapping[str, Any] | None:
    """The states of external environments in the checkpoint; None if they start again."""
    return session.resume_point.environments if session.resume_point else None
