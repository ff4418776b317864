"""`Session`: the arrays of a compiled system, the lanes over them, and their way to a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pearl.algorithms import algorithm
from pearl.algorithms.environments import start_normalisation
from pearl.algorithms.evaluation import acting_if_any
from pearl.algorithms.families.learners import learning as learning_tasks
from pearl.algorithms.interface import held, label, pass_first
from pearl.errors import SpecError
from pearl.planning.plans import plain
from pearl.planning.runs import CHECKPOINT
from pearl.runtime.environments import external_envs
from pearl.runtime.protocol import channels, single_lane
from pearl.runtime.protocol.residency import Residency
from pearl.spec.user_code import reporting_user_errors
from pearl.training import memory
from pearl.training.checkpoints import checkpoint, restoring
from pearl.training.checkpoints.state import RunState
from pearl.training.compiled import CompiledPlan
from pearl.training.milestones import Milestones
from pearl.training.policy import FILES, Policy
from pearl.training.steering import Which
from pearl_devices import Buffers, UnsupportedError, buffers, platform_json
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.data_parallel import spread

if TYPE_CHECKING:
    from pearl.runtime.lanes.engine import Engine
    from pearl.runtime.protocol.run_context import RunContext
    from pearl.runtime.remote.remote_worker import RemoteGroup

BEST = "best."
"""Beginning of the names of the arrays of the best policy."""


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint that a run goes on from.

    environments: brings the environments outside the arrays back; None: these start anew.
    anew: beginnings of the names of arrays that are not taken from the checkpoint.
    """

    stored: checkpoint.CheckpointFile
    environments: Mapping[str, Any] | None
    reset: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: Path) -> ResumePoint:
        """A checkpoint from which its own run goes on unchanged."""
        stored = checkpoint.load(file)
        return cls(stored, stored.about["environments"])


class Session:
    """The arrays of a compiled system as they are at some iteration of a run.

    arrays: all of them, by name. Those that calls are bound to stay the same objects.
    seed: of all random streams.
    at: iterations done, those in which the lanes were drained included.
    acting: the kernel that acts, with what stands between it and the environments.
    environments: returns what brings environments outside the arrays back.
    notes: returns sentences of the calls that last ran, about how they did.
    """

    def __init__(self, compiled: CompiledPlan, seed: int) -> None:
        self.compiled, self.seed, self.at = compiled, seed, 0
        self.environments: Callable[[], Mapping[str, Any]] = dict
        self.notes: Callable[[], list[str]] = list
        self._memory: channels.SharedArrays | None = None
        self.acting = acting_if_any(compiled.graph)
        self.arrays = self._allocated()
        self.start(seed)

    def _allocated(self) -> Buffers:
        """All arrays, in shared memory where lanes run in processes of their own."""
        c, kernels = self.compiled, {}
        for name, job in c.jobs.items():
            origin, _ = c.replica_graph.origin(name)
            fused = len(job.tasks) > 1
            kernels[job.name if fused else origin] = (
                job.kernel if fused else c.graph.task(origin).kernel
            )
        arrays: Buffers = {}
        with memory.fitting(kernels.values(), memory.rows(c.system)):
            buffers.allocate(kernels.values(), arrays)
            for name, shape, dtype in channels.extra_arrays(c.protocol, c.graph, arrays):
                arrays[name] = np.zeros(shape, dtype)
            if c.any_order:
                arrays["any_order.acted"] = np.zeros(len(c.protocol.split.shares), np.int64)
            if c.hosting in ("processes", "ray"):
                self._memory = channels.copy_to_shared_memory(arrays)
                arrays = dict(self._memory.arrays)
        return arrays

    def start(self, seed: int, steps: int | None = None) -> None:
        """Fill all arrays as they are before the first env step of a run.

        steps: env steps of that run, by default the spec's.
        """
        from pearl_devices.primitives.math.rng import key

        arrays, system = self.arrays, self.compiled.system
        for array in arrays.values():
            array[...] = 0
        for name, array in arrays.items():
            if name.startswith("rng."):
                array[0] = key(seed, name.removeprefix("rng."))
        lasting = system if steps is None else system.lasting(steps)
        name = system.algorithm.name
        with reporting_user_errors(system, f"algorithm.name: {name}: its initialise"):
            algorithm(name).initialise(arrays, lasting, seed)
        start_normalisation(arrays, system)
        spread(arrays)
        for name, array in arrays.items():
            if "@" in name and not name.startswith("rng."):
                array[...] = arrays[name.partition("@")[0]]
        self.at = 0
        for copies in (BEST, restoring.EVALUATED):
            for copy, name in self._copied(copies).items():
                arrays[copy] = arrays[name].copy()

    # ------------------------------------------------------------------ policies

    def _copied(self, copies: str) -> dict[str, str]:
        """Array of a copy of the policy → the array that training changes.

        copies: BEST, or JUDGED of `restoring`.
        """
        states = held(self.compiled.system, self.acting) if self.acting else {}
        found = {f"{copies}{label(name)}": name for name in states}
        return {f"{copies}policy": self.compiled.policy, **found}

    def newest(self, name: str) -> str:
        """The array that holds the newest version of `name`."""
        return channels.latest_parameters_name(self.compiled.protocol, name, self.at)

    def keep(self) -> None:
        """Make the current policy the best one."""
        self._copy(BEST)

    def copy_for_evaluation(self) -> Buffers:
        """Make the current policy the one that is judged; returns its arrays."""
        self._copy(restoring.EVALUATED)
        return self.evaluated_arrays

    @property
    def evaluated_arrays(self) -> Buffers:
        """The arrays of the policy that is judged."""
        return {copy: self.arrays[copy] for copy in self._copied(restoring.EVALUATED)}

    def mark_evaluated_best(self) -> None:
        """Make the policy that was judged the best one."""
        for best, judged in zip(self._copied(BEST), self._copied(restoring.EVALUATED), strict=True):
            self.arrays[best][...] = self.arrays[judged]

    def _copy(self, copies: str) -> None:
        for copy, name in self._copied(copies).items():
            self.arrays[copy][...] = self.arrays[self.newest(name)]

    def best_is_last(self) -> bool:
        """Whether the current policy is the best one."""
        a = self.arrays
        return not any((a[b] != a[self.newest(n)]).any() for b, n in self._copied(BEST).items())

    def policy(self, which: Which) -> Policy:
        """The policy over this session's own arrays."""
        if which == "best":
            return self._policy(BEST)
        states = {name: self.arrays[self.newest(name)] for name in self._copied(BEST).values()}
        return self._of(states)

    @property
    def evaluated_policy(self) -> Policy:
        """The policy that is judged."""
        return self._policy(restoring.EVALUATED)

    def _policy(self, copies: str) -> Policy:
        return self._of({name: self.arrays[copy] for copy, name in self._copied(copies).items()})

    def _of(self, states: Buffers) -> Policy:
        """states: the arrays of a policy, its parameters among them."""
        assert self.acting
        return Policy(self.compiled.system, self.acting, states.pop(self.compiled.policy), states)

    # ------------------------------------------------------------------ lanes

    @contextmanager
    def lanes(
        self, milestones: Milestones, state: RunState, resumed: ResumePoint | None
    ) -> Iterator[single_lane.SingleLaneRunner | Engine]:
        """The plan's lanes, ready at the iteration of `state`, ended with the context.

        resumed: the checkpoint in which `state` was read, where it was.
        """
        from pearl.runtime.environments.watchdog import env_time_limit

        c, options = self.compiled, self.compiled.system.train
        learning = learning_tasks(algorithm(c.system.algorithm.name).LEARNING, c.graph)
        limit_s = options.env_time_limit or external_envs.TIME_LIMIT_S
        restart = options.on_env_failure == "restart"
        pace_s = None if c.emulate else c.plan.pace_s
        before = resumed.environments if resumed else None
        residency = Residency(c.jobs, self.arrays, partial(channels.array_name, c.protocol))
        self.notes = residency.notes
        if c.protocol.is_single_lane:
            with reporting_user_errors(c.system, "binding the kernels"), _binding_errors():
                steps = single_lane.bind(c.order, c.jobs, learning, self.arrays, residency)
                found = {s.job.name: external_envs.external_envs_of(s.job, s.call) for s in steps}
                environments = {name: env for name, env in found.items() if env is not None}
                for env in environments.values():
                    env.on_failure = external_envs.failure_listener(state.log, restart=restart)
                if before is not None:
                    external_envs.restore(environments, before)
            self.again(resumed)
            self.environments = lambda: external_envs.snapshot(environments)
            with env_time_limit(environments, environments, limit_s):
                yield single_lane.SingleLaneRunner(
                    steps,
                    self.arrays,
                    milestones.warm,
                    residency,
                    iteration=state.iteration,
                    pace_s=pace_s,
                    under_way=state.under_way,
                )
            return
        from pearl.runtime.lanes.engine import Engine
        from pearl.runtime.protocol.control_block import WorkRange
        from pearl.runtime.protocol.run_context import RunContext

        work = RunContext(
            protocol=c.protocol,
            jobs=c.jobs,
            arrays=self.arrays,
            residency=residency,
            learning=learning,
            span=WorkRange(milestones.warm, milestones.total, state.drained),
            worker_config={
                "spec": plain(c.system.raw),
                "platform": platform_json.to_json(c.system.platform),
                "plan": c.plan.to_json(),
                "emulate": c.emulate,
                "any_order": c.any_order,
            },
            pace_s=pace_s,
            env_snapshots=before or {},
            env_time_limit_s=limit_s,
            restart_envs=restart,
            log=state.log,
            memory=self._memory,
            remote_groups=self._elsewhere(),
        )
        engine = self._in_any_order(work) if c.any_order else Engine(work, c.hosting)
        with reporting_user_errors(c.system, "binding the kernels"), _binding_errors():
            engine.__enter__()
        with (
            closing(engine),
            env_time_limit(engine.thread_environments, engine.process_environments, limit_s),
        ):
            self.again(resumed)
            self.environments = engine.environments
            with reporting_user_errors(c.system, "binding the kernels"), _binding_errors():
                engine.start(state.iteration, state.under_way)
            yield engine

    def _elsewhere(self) -> list[RemoteGroup]:
        """The islands of the plan, where they are run as such."""
        c = self.compiled
        if c.hosting != "ray" or not c.islands:
            return []
        from pearl.runtime.remote import ray_lane_client
        from pearl.runtime.remote.batching import GroupFlows, plan_flows
        from pearl.runtime.remote.remote_worker import RemoteGroup

        no_flows = [GroupFlows((), ()) for _ in c.islands]
        flows = no_flows if c.any_order else plan_flows(c.protocol, c.islands)
        make_client = ray_lane_client.RayLaneClient
        return [RemoteGroup(i, f, make_client) for i, f in zip(c.islands, flows, strict=True)]

    def _in_any_order(self, work: RunContext) -> Engine:
        """The lanes of an any-order plan."""
        from pearl.runtime.lanes.async_learner import AsyncEngine

        if self.compiled.hosting == "one":
            raise SpecError(
                "limits.any_order: each copy of the actors needs a thread or a process of its own, "
                "and train.lanes is one; set it to threads or processes"
            )
        return AsyncEngine(work, self.compiled.hosting, self.compiled.graph)

    def again(self, resumed: ResumePoint | None) -> None:
        """Copy the arrays of a checkpoint again: binding has reset environments outside them.

        No call has run since they were first copied, so the replay is as it was. Observations that
        environments have just given pass the kernels of the user's own that stand before the
        network.
        """
        if resumed:
            without = (restoring.REPLAY, *resumed.reset)
            restoring.restore(resumed.stored, self.arrays, self.compiled.graph, without=without)
        if self.acting and self.acting.interface and (not resumed or "env." in resumed.reset):
            with reporting_user_errors(self.compiled.system, "the first observations"):
                pass_first(self.acting, self.arrays)

    # ------------------------------------------------------------------ checkpoints

    def held(self, done: RunState) -> Buffers:
        """The arrays as a checkpoint holds them: those of a policy that is judged while it is."""
        replay = self.compiled.system.train.checkpoint_replay
        found = restoring.checkpoint_views(self.arrays, self.compiled.graph, replay=replay)
        return {
            n: a for n, a in found.items() if done.judging or not n.startswith(restoring.EVALUATED)
        }

    def nbytes(self, done: RunState) -> int:
        """Bytes of the arrays in a checkpoint."""
        return sum(array.nbytes for array in self.held(done).values())

    def save(self, path: Path, done: RunState) -> None:
        """Write the arrays and `done` to a checkpoint, atomically."""
        progress: dict[str, Any] = plain(vars(done) | {"log": vars(done.log)})
        about = {
            "spec": plain(self.compiled.system.raw),
            "plan": self.compiled.plan.to_json(),
            "emulate": self.compiled.emulate,
            "seed": self.seed,
            "progress": progress,
            "environments": self.environments(),
        }
        checkpoint.save(path, self.held(done), about)

    def save_run(
        self, folder: Path, done: RunState, pace: checkpoint.CheckpointPacer | None = None
    ) -> None:
        """Write both policies and the checkpoint of a run. pace: is told how long it took.

        Until a policy has been evaluated, the best one is the last.
        """
        begin_s = time.monotonic()
        if done.best_mean is None:
            self.keep()
        env_steps = done.iteration * self.compiled.graph.env_steps
        for which, name in FILES.items():
            policy = self.policy("best" if which == "best" else "last")
            policy.save(folder / name, which=which, env_steps=env_steps)
        self.save(folder / CHECKPOINT, done)
        if pace:
            pace.wrote(self.nbytes(done), time.monotonic() - begin_s)

    def load_checkpoint(
        self, stored: checkpoint.CheckpointFile, steps: int | None = None
    ) -> Buffers:
        """Copy the arrays of a checkpoint, once all of them are sound.

        Returns the constants of a run of `steps` env steps, by default the spec's.
        Raises SpecError with a sentence for every array that does not fit.
        """
        c = self.compiled
        kernels = [t.kernel for t in c.graph.tasks if kind_of(t.kernel).structure == "insert"]
        inserted = kernels[0].dim("envs") if kernels else 1
        if c.any_order:
            inserted = gcd(*c.protocol.split.shares)
        restoring.check(stored, self.arrays, c.graph, c.system, inserted)
        self.seed = stored.about["seed"]
        self.start(self.seed, steps)
        given = _constants(self.arrays)
        restoring.restore(stored, self.arrays, c.graph)
        return given


@contextmanager
def _binding_errors() -> Iterator[None]:
    """Errors while calls are bound and environments come back, as one kind of error."""
    try:
        yield
    except (single_lane.LaneError, ValueError) as error:
        raise UnsupportedError(str(error)) from error


def _constants(arrays: Buffers) -> Buffers:
    """Copies of the arrays that are set from spec and total, and that training never changes."""
    return {
        name: array.copy()
        for name, array in arrays.items()
        if name.startswith("hyper.") or name.partition("@")[0] == "replay.beta"
    }
