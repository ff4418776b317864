"""`compile` a system into a `Trainer`, and train it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml

from pearl.algorithms import algorithm
from pearl.algorithms.environments import start_normalisation
from pearl.errors import SpecError
from pearl.files import held, write_atomically
from pearl.graph.sequential import program_order
from pearl.graph.task_graph import TaskGraph
from pearl.planner.planner import as_system, problem, spare
from pearl.planner.planner import plan as make_plan
from pearl.planning.plan_validation import check_plan, completions, stated_costs, unfolded
from pearl.planning.plans import Plan, load_plan, pearl_version, plain
from pearl.planning.runs import CHECKPOINT as CHECKPOINT
from pearl.planning.runs import SPEC_MARK, Progress, Run, check_folder
from pearl.report.report import Report
from pearl.report.tables import drift_sentence
from pearl.runtime.clock import Clock, RealClock, VirtualClock
from pearl.runtime.environments import external_envs
from pearl.runtime.protocol import channels, single_lane
from pearl.runtime.protocol.lane_schedule import Protocol
from pearl.seeds import checked_seed
from pearl.solvers.model import solver_process
from pearl.spec.reading import System, load
from pearl.spec.trust import note, require
from pearl.training import checkpoint, evaluation, memory, replanning, restoring, resuming
from pearl.training.contradiction import contradicted
from pearl.training.interruption import Interruption, interruptible
from pearl.training.policy import FILES, Policy
from pearl.training.policy_export import export
from pearl.training.session import (
    ROWS,
    Finals,
    Job,
    Schedule,
    cpu_seconds,
    outcome,
    timings,
    train,
    unwritten,
)
from pearl.training.state import State
from pearl_devices import (
    Buffers,
    Device,
    Kernel,
    UnsupportedError,
    backend,
    buffers,
    torch_threads,
)
from pearl_devices.base import EnvironmentFailed
from pearl_estimators.energy import EnergyMeter
from pearl_estimators.host.on_demand import doubt

if TYPE_CHECKING:
    from pearl.runtime.lanes.engine import Engine, Work

Hosting = Literal["one", "threads", "processes"]
STATISTICS = "best.normalise"
PROFILE_ROUNDS = 30
Listener = Callable[[Progress], None]
LOG = logging.getLogger("pearl")


def compile(
    system: System | str | Path | Mapping[str, Any],
    *,
    set: Mapping[str, object] | None = None,
    plan: Plan | str | Path | None = None,
    emulate: bool = False,
    seed: int | None = None,
) -> Trainer:
    """Spec → graph → costs → plan → a trainer whose kernels are bound when it first trains.

    set: values that override the spec's, keys dotted. plan: train this one, or the one in
    this file, instead of solving.
    emulate: compute on the host whatever the plan says, on a virtual clock; every figure is then
    labelled simulated. seed: instead of the spec's.
    Raises SpecError where the spec or plan is wrong, or the plan needs devices that are not here.
    """
    if set:
        if isinstance(system, System):
            raise SpecError(
                "compile: `set` changes a spec, but a loaded System was given; pass it to `load`"
            )
        system = load(system, set=set)
    system = as_system(system)
    given = plan is not None
    if plan is None:
        spare(system)
        plan = make_plan(system)
    else:
        plan = plan if isinstance(plan, Plan) else load_plan(plan)
        _check(plan, system)
    trainer = Trainer(system, plan, emulate=emulate, seed=seed)
    trainer._plan_given = given
    if not emulate:
        absent = [d.name for d in _used(trainer) if not d.real]
        if absent:
            here = system.platform.name == "host"
            raise SpecError(
                f"the plan uses {', '.join(absent)} of platform {system.platform.name}, which "
                f"{'this version plans for but cannot drive' if here else 'this machine lacks'}; "
                "emulate the plan (--emulate), or "
                + ("keep the tasks off it (limits.devices)" if here else "plan for platform host")
            )
    return trainer


def plan_of_run(folder: Path, system: System) -> Plan | None:
    """The plan that a run of `system` goes on with, that in its checkpoint; None where there is
    none."""
    file = folder / CHECKPOINT
    if not file.exists():
        return None
    about = checkpoint.load(file).about
    resuming.check_spec(about["spec"], plain(system.raw), file)
    return _own_plan(about, system, file)


def _own_plan(about: Mapping[str, Any], system: System, file: Path) -> Plan:
    """The plan in a checkpoint; a SpecError where it cannot be followed here."""
    plan = load_plan(about["plan"])
    try:
        _check(plan, system)
    except SpecError as error:
        raise SpecError(
            *(f"{file}: {problem}" for problem in error.problems),
            f"{file}: the run cannot go on here with the plan it had; give another (--plan)",
        ) from None
    return plan


def _check(plan: Plan, system: System) -> None:
    """A plan that was given: sound in itself, and of modes that the devices offer.

    Its times are taken as it states them, so no estimate is asked for and nothing is measured.
    """
    graph = algorithm(system.algorithm.name).graph(system)
    whole, torn, _ = unfolded(plan, graph)
    check_plan(whole, torn, stated_costs(whole, torn, system.platform))
    problems = []
    for job in set(single_lane.jobs(whole, torn, system.platform, emulate=False).values()):
        device = system.platform.device(whole.task(job.tasks[0]).device)
        offered = backend(device.kind).offers(job.kernel, device)
        if job.variant not in [name for name, _ in offered]:
            problems.append(
                f"plan: {job.name} runs as {job.variant!r} on {device.name}, which offers "
                f"{offered or 'nothing'} for it"
            )
    if problems:
        raise SpecError(*sorted(problems))


def require_own(folder: Path, *, trust: bool) -> None:
    """Refuse to go on from a checkpoint in `folder` whose spec names code, where this user has not
    trained by that spec and does not trust it. Imports nothing."""
    if (folder / CHECKPOINT).exists():
        require(checkpoint.load(folder / CHECKPOINT).about["spec"], folder, trust=trust)


def _used(trainer: Trainer) -> list[Device]:
    names = {t.device for t in trainer.plan.tasks}
    return [d for d in trainer.system.platform.devices if d.name in names]


class Trainer:
    """A system with its plan, ready to train. Build it with `pearl.compile` or `Trainer.load`."""

    def __init__(
        self, system: System, plan: Plan, *, emulate: bool = False, seed: int | None = None
    ) -> None:
        self.system = system
        self.plan = plan
        self.emulate = emulate
        self.seed = system.train.seed if seed is None else checked_seed(seed)
        self._seed_given, self._plan_given = seed, False
        self.graph = algorithm(system.algorithm.name).graph(system)
        self.protocol = Protocol(plan, self.graph)
        self._jobs = single_lane.jobs(
            self.protocol.plan, self.protocol.graph, system.platform, emulate=emulate
        )
        if self.protocol.alone:
            self._order = (program_order if emulate else self._planned)(self.graph)
        self._arrays: Buffers = {}
        self._memory: channels.Memory | None = None
        self._at = 0
        self._resumed: _Resumed | None = None
        self._snapshot: Callable[[], Mapping[str, Any]] = dict
        self._start(self.seed)

    # ------------------------------------------------------------------ what a user does

    def train(
        self,
        *,
        steps: int | None = None,
        seed: int | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        progress: Listener | None = None,
        replan: bool = False,
    ) -> Run:
        """Train from the start, or with `resume` from the checkpoint in `out`.

        steps: env steps over all environments, rounded up to a whole iteration (default: the
        spec's). seed: instead of the trainer's. out: folder for plan.json, run.json, metrics.csv,
        report.html and the checkpoint. progress: called a few times a second; what it raises ends
        the run, `failed` with a checkpoint, and is raised then.
        Ctrl-C ends the run after the iterations in hand, with a checkpoint; its status is then
        `interrupted`, and a second one is a KeyboardInterrupt. SIGTERM and SIGHUP end it likewise,
        and then the process, as they would have. A loss that is not finite, or a lane that cannot
        go on, ends it with status `failed` and a `message`, the last checkpoint untouched. An
        environment that fails starts anew, and unless the spec says `restart` the run then ends,
        `failed` with a checkpoint.
        Afterwards `policy` is the best evaluated one.
        resume: with the plan in the checkpoint unless `compile` was given one; from the start where
        there is no checkpoint. Keys of `train` may have changed but for the seed. steps: by default
        what the run had or, where it has come to its end or the spec has others now, the spec's.
        Learning rates and exponents that follow the steps of the run then follow the new ones.
        replan: at checkpoints whose period is off from the plan's by more than 15 % look for a plan
        that is better at the times measured, and go on with it from that checkpoint: parameters,
        replay, random streams and counters stay. Such a run is not bit-reproducible, for what is
        measured decides what it does. A run whose plan changed resumes with the plan that it had.
        """
        if steps is not None and steps < 1:
            raise SpecError(f"train: steps is {steps}; at least 1 is needed")
        folder = Path(out) if out is not None else None
        if replan:
            self._check_replan(folder)
        if resume and folder is None:
            raise SpecError("train: resume needs `out`, the folder of the run to go on with")
        if seed is not None:
            self.seed = self._seed_given = checked_seed(seed)
        with interruptible() as interruption:
            if folder is None:
                return self._run(self._begin(steps), None, progress, interruption, replan=False)
            check_folder(folder)
            with held(folder):
                file = folder / CHECKPOINT
                if resume and file.exists():
                    state = self._resume(file, steps)
                elif file.exists():
                    raise SpecError(
                        f"train: {folder} already holds a run; go on with it (resume), or give "
                        "another folder, else its checkpoint would be lost"
                    )
                else:
                    state = self._begin(steps)
                    if resume:
                        _told(state, f"there is no checkpoint in {folder}: the run begins anew")
                if restoring.CURSOR in self._arrays and not self.system.train.checkpoint_replay:
                    _told(
                        state,
                        "train.checkpoint_replay is false: gone on with from a checkpoint, this "
                        "run will fill its replay anew, and not equal one that went through",
                    )
                note(self.system.raw)
                self.plan.save(folder / "plan.json")
                text = yaml.safe_dump(plain(self.system.raw), sort_keys=False, allow_unicode=True)
                write_atomically(folder / "spec.yaml", (SPEC_MARK + text).encode())
                return self._run(state, folder, progress, interruption, replan=replan)

    def evaluate(self, episodes: int = 20, seed: int = 0) -> list[float]:
        """Returns of `episodes` fresh episodes of the greedy policy on the spec's environment.

        An episode that is cut after `train.evaluate_max_steps` is told as a warning of the logger
        "pearl". An environment that fails is an EnvironmentFailed.
        """
        found = evaluation.evaluate(self.policy, episodes, checked_seed(seed))
        if found.cut:
            LOG.warning(found.text)
        return [*found.returns]

    @property
    def policy(self) -> Policy:
        """The policy without exploration: after training the best evaluated."""
        return self._policy("best").copy()

    def save(self, path: str | Path) -> None:
        """Write everything this trainer is made of to one file, atomically."""
        note(self.system.raw)
        self._save(Path(path), State(total_steps=self.system.train.steps))

    def export(self, path: str | Path) -> dict[str, Any]:
        """Write `policy` as a torch state_dict (safetensors, no pickle); returns its description.

        See `pearl.training.policy_export` for names and description.
        """
        return export(self.policy, path)

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False) -> Trainer:
        """A trainer from a file written by `save` or from a run folder.

        trust: import the code that its spec names though this user has not trained by that spec.
        Without, such a file is a SpecError, and nothing is imported (`docs/trust.md`).
        A file that is missing, damaged or of another version is a SpecError.
        """
        file = Path(path) / CHECKPOINT if Path(path).is_dir() else Path(path)
        stored = checkpoint.load(file)
        about = stored.about
        require(about["spec"], path, trust=trust)
        trainer = cls(
            load(about["spec"]),
            load_plan(about["plan"]),
            emulate=about["emulate"],
            seed=about["seed"],
        )
        trainer._take_in(stored)
        return trainer

    def report(self, run: Run | None = None) -> Report:
        """The assignment report; with `run`, prediction beside measurement."""
        return Report(self.plan, run, self.system)

    # ------------------------------------------------------------------ how it is done

    @property
    def _name(self) -> str:
        return f"policy.{algorithm(self.system.algorithm.name).POLICY}"

    @property
    def _acting(self) -> Kernel:
        return self.graph.task("inference").kernel

    def _start(self, seed: int, steps: int | None = None) -> None:
        """Fill all arrays as they are before the first env step of a run of so many (default: the
        spec's), in place once they exist."""
        from pearl_devices.primitives.math.rng import key

        if not self._arrays:
            self._allocate()
        for array in self._arrays.values():
            array[...] = 0
        for name, array in self._arrays.items():
            if name.startswith("rng."):
                array[0] = key(seed, name.removeprefix("rng."))
        system = self.system if steps is None else self.system.lasting(steps)
        algorithm(self.system.algorithm.name).initialise(self._arrays, system, seed)
        start_normalisation(self._arrays, self.system)
        for name, array in self._arrays.items():
            if "@" in name and not name.startswith("rng."):
                array[...] = self._arrays[name.partition("@")[0]]
        self._at = 0
        for best, name in self._kept().items():
            self._arrays[best] = self._arrays[name].copy()

    def _planned(self, graph: TaskGraph) -> tuple[str, ...]:
        return single_lane.one_lane_order(self.plan, graph)

    @property
    def hosting(self) -> Hosting:
        """Where the lanes beside the one that updates run."""
        if self.emulate or len(self.protocol.lanes) == 1:
            return "one"
        return self.system.train.lanes

    def _allocate(self) -> None:
        """All arrays, in shared memory where lanes run in processes of their own."""
        kernels = {}
        for name, job in self._jobs.items():
            origin, _ = self.protocol.graph.origin(name)
            fused = len(job.tasks) > 1
            kernels[job.name if fused else origin] = (
                job.kernel if fused else self.graph.task(origin).kernel
            )
        arrays: Buffers = {}
        with memory.fitting(kernels.values(), memory.rows(self.system)):
            buffers.allocate(kernels.values(), arrays)
            for name, shape, dtype in channels.further(self.protocol, self.graph, arrays):
                arrays[name] = np.zeros(shape, dtype)
            if self._any_order:
                arrays["any_order.acted"] = np.zeros(len(self.protocol.split.shares), np.int64)
            if self.hosting == "processes":
                self._memory = channels.moved(arrays)
                arrays = dict(self._memory.arrays)
        self._arrays.update(arrays)

    @torch_threads.kept()
    def _run(
        self,
        state: State,
        folder: Path | None,
        progress: Listener | None,
        interruption: Interruption,
        *,
        replan: bool,
    ) -> Run:
        solver_process.end()  # a run is measured, and its processes are its own
        begin_s, begin_cpu_s = time.perf_counter(), cpu_seconds()
        per, a = self.graph.env_steps, self.system.algorithm
        iterations = -(-state.total_steps // per)
        options = self.system.train
        warm = state.refilled - (-getattr(a, "learning_starts", 0) // per)
        every, pace = options.checkpoint_every, None
        if every is None:
            every, pace = checkpoint.EVERY, checkpoint.Pace(time.monotonic())
        schedule = Schedule(
            total=iterations,
            warm=warm,
            steady=warm + -(-iterations // 10),
            evaluate_every=-(-options.evaluate_every // per),
            checkpoint_every=-(-every // per),
            metrics_every=max(iterations // ROWS, 1),
        )
        message = None
        meter = EnergyMeter.of(() if self.emulate else self.system.platform.devices)
        watch = replanning.Watch(self.plan.period_s) if replan else None
        times_ns: dict[str, list[int]] = {}
        lags: dict[str, Counter[int]] = {}
        with meter:
            while True:
                with self._lanes(schedule, state) as lanes:
                    work = Job(
                        graph=self.graph,
                        plan=self.plan,
                        arrays=self._arrays,
                        lanes=lanes,
                        jobs=list({job.name: job for job in self._jobs.values()}.values()),
                        schedule=schedule,
                        clock=self._clock(iterations, state.iteration),
                        evaluate=lambda: self._periodic(state),
                        keep=self._keep,
                        settled=self._settled,
                        save=None
                        if folder is None
                        else lambda now: self._save_run(folder, now, pace),
                        due=lambda: pace is None or pace.due(self._nbytes(), time.monotonic()),
                        metrics=None if folder is None else folder / "metrics.csv",
                        progress=progress,
                        interruption=interruption,
                        watch=watch,
                    )
                    try:
                        status = train(work, state)
                        self._at = state.iteration
                        if status == "done" and self.protocol.drain:
                            end = iterations + self.protocol.drain
                            self._at = lanes.run(end, end)
                            state.drained = iterations
                        if status == "done":
                            self._snapshot = dict(self._snapshot()).copy
                    except (single_lane.LaneError, EnvironmentFailed) as error:
                        status, state.log.failure = "failed", " ".join(str(error).split())
                times_ns = replanning.gathered(times_ns, lanes.times_ns)
                for name, seen in lanes.lags.items():
                    lags.setdefault(name, Counter()).update(seen)
                if status != "off":
                    break
                if self._replan(work, state, lanes.times_ns, folder):
                    watch, times_ns = replanning.Watch(self.plan.period_s), {}
                solver_process.end()
        if state.best_mean is None:
            self._keep()
        final, unsaved = None, None
        if status == "done":
            if folder is not None:
                try:
                    self._save_run(folder, state)
                except OSError as error:
                    unsaved = unwritten(state, work, error)
            try:
                final = interruption.unless_asked(lambda: self._final(state))
                status = "interrupted" if final is None else "done"
            except EnvironmentFailed as error:
                status, state.log.failure = "failed", str(error)
        measured = {} if self.emulate else times_ns
        if unsaved and status == "done":
            status, state.log.failure = "failed", unsaved
        if status == "failed":
            message = state.log.failure
        rows = timings(work, self.protocol.plan, measured, PROFILE_ROUNDS)
        wall_s, cpu_s = time.perf_counter() - begin_s, cpu_seconds() - begin_cpu_s
        run = outcome(
            work,
            state,
            status,
            rows,
            wall_s=wall_s,
            cpu_s=cpu_s,
            energy=meter.read({self.system.platform.host: cpu_s}),
            final=final,
            lags=lags,
            message=message,
            out=None if folder is None else str(folder),
        )
        if run.drift is not None and self.plan.problem is not None:  # planned here and now
            at = self.protocol
            doubt(contradicted(at.plan, at.graph, run.drift))
        if folder is not None:
            run.save(folder / "run.json")
            self.report(run).save(folder / "report.html")
        if work.raised is not None:
            raise work.raised
        return run

    def _check_replan(self, folder: Path | None) -> None:
        """Whether a run of this trainer can change its plan at all."""
        problems = []
        if folder is None:
            problems.append("train: replan needs `out`: it goes on from a checkpoint")
        if self.system.train.checkpoint_every == 0:
            problems.append(
                "train: replan happens at checkpoints, and train.checkpoint_every is 0; set it"
            )
        if self.emulate:
            problems.append(
                "train: replan compares measured times, and an emulated run has none; leave one out"
            )
        if self.system.limits.any_order:
            problems.append(
                "train: replan has no other plan for limits.any_order, which says who runs where"
            )
        if problems:
            raise SpecError(*problems)

    def _replan(
        self,
        work: Job,
        state: State,
        times_ns: Mapping[str, list[int]],
        folder: Path | None,
    ) -> bool:
        """At the checkpoint just written, with no lanes: whether another plan takes over. The next
        lanes go on from there either way, and what was decided is noted."""
        watch = work.watch
        assert watch
        assert folder
        file = folder / CHECKPOINT
        newest = replanning.recent(times_ns, self.protocol, watch.looks)
        rows = timings(work, self.protocol.plan, newest, PROFILE_ROUNDS)
        graph, costs = problem(self.system)
        state.factors |= replanning.factors(costs, graph, self.protocol, work.jobs, rows)
        found = work.interruption.unless_asked(
            lambda: replanning.decide(
                self.system, self.plan, state.factors, costs, graph, watch.period_s
            )
        )
        watch.weighed_s = watch.period_s
        shown = replanning.drift(self.plan, watch.period_s, rows, ())
        text = f"env step {state.iteration * graph.env_steps}: {drift_sentence(shown)}"
        why = "the search for another was interrupted" if found is None else found.why
        kept = f"{text} Plan kept: {why}."
        if found is not None and found.plan is not None:
            try:
                self._resumed = _resumed(file)
                changed = f"{text} Plan changed: {found.why}."
                self._change(found.plan, work.schedule, state, folder, changed)
            except (
                *(SpecError, UnsupportedError, OSError),
                *(single_lane.LaneError, EnvironmentFailed),
            ) as error:
                why = " ".join(str(error).split())
                kept = f"{text} Plan kept, though there is a better one, for it cannot go on: {why}"
            else:
                return True
        _decided(state, kept)
        self._resumed = _resumed(file)
        return False

    def _change(
        self, plan: Plan, schedule: Schedule, state: State, folder: Path, text: str
    ) -> None:
        """Become the trainer of another plan amid a run, with a checkpoint of it written. What is
        under way by slack is done first. If it fails, the checkpoint and `state` are as before."""
        new = Trainer(self.system, plan, seed=self.seed)
        wrong = replanning.misfits(self._arrays, new._arrays)
        if wrong:
            raise SpecError(f"its arrays are others: {', '.join(wrong)}")
        assert self._resumed
        environments, file = self._resumed.environments or {}, self._resumed.stored.path
        end = state.iteration + self.protocol.drain
        if self.protocol.drain:
            with self._lanes(replace(schedule, total=state.iteration), state) as lanes:
                lanes.run(end, end)
        else:
            self._again()
        replanning.carry(
            self.protocol, self._arrays, end, new.protocol, new._arrays, state.iteration
        )
        steady = dict.fromkeys(state.steady, 0.0)
        after = replace(state, drained=state.iteration, replanned=True, steady=steady)
        after.decisions, after.log = [*state.decisions], replace(state.log)
        after.log.events = [*state.log.events]
        _decided(after, text)
        new._at, new._snapshot = state.iteration, lambda: environments
        new._save_run(folder, after)
        vars(state).update(vars(after))
        vars(self).update(vars(new))
        self._resumed = _resumed(file)
        try:
            plan.save(folder / "plan.json")
        except OSError as error:
            state.log.note(f"plan.json is the plan before: {error.strerror}", restarts=0)

    @contextmanager
    def _lanes(self, schedule: Schedule, state: State) -> Iterator[single_lane.OneLane | Engine]:
        """The plan's lanes, ready at the iteration that `state` says, ended with the context."""
        learning = algorithm(self.system.algorithm.name).LEARNING
        options = self.system.train
        limit_s = options.env_time_limit or external_envs.TIME_LIMIT_S
        restart = options.on_env_failure == "restart"
        if self.protocol.alone:
            with _bringing_back():
                steps = single_lane.bind(self._order, self._jobs, learning, self._arrays)
                found = {s.job.name: external_envs.found(s.job, s.call) for s in steps}
                environments = {name: env for name, env in found.items() if env is not None}
                for env in environments.values():
                    env.on_failure = external_envs.hearing(state.log, restart=restart)
                if self._resumed and self._resumed.environments is not None:
                    external_envs.restore(environments, self._resumed.environments)
            self._again()
            self._snapshot = lambda: external_envs.snapshot(environments)
            with external_envs.limited(environments, environments, limit_s):
                yield single_lane.OneLane(
                    steps,
                    self._arrays,
                    schedule.warm,
                    iteration=state.iteration,
                    pace_s=None if self.emulate else self.plan.pace_s,
                )
            return
        from pearl.runtime.lanes.engine import Engine, Work
        from pearl.runtime.protocol.control_block import Span

        work = Work(
            protocol=self.protocol,
            jobs=self._jobs,
            arrays=self._arrays,
            learning=learning,
            span=Span(schedule.warm, schedule.total, state.drained),
            about={
                "spec": plain(self.system.raw),
                "plan": self.plan.to_json(),
                "emulate": self.emulate,
                "any_order": self._any_order,
            },
            pace_s=None if self.emulate else self.plan.pace_s,
            restored=(self._resumed and self._resumed.environments) or {},
            env_time_limit_s=limit_s,
            restart_envs=restart,
            log=state.log,
            memory=self._memory,
        )
        engine = self._in_any_order(work) if self._any_order else Engine(work, self.hosting)
        with _bringing_back():
            engine.__enter__()
        with (
            closing(engine),
            external_envs.limited(
                engine.environments_here, engine.environments_in_process, limit_s
            ),
        ):
            self._again()
            self._snapshot = engine.environments
            with _bringing_back():
                engine.start(state.iteration)
            yield engine

    @property
    def _any_order(self) -> bool:
        return self.system.limits.any_order and not self.emulate

    def _in_any_order(self, work: Work) -> Engine:
        """The lanes of an any-order plan."""
        from pearl.runtime.lanes.async_learner import AnyOrder

        if self.hosting == "one":
            raise SpecError(
                "limits.any_order: each copy of the actors needs a thread or a process of its own, "
                "and train.lanes is one; set it to threads or processes"
            )
        return AnyOrder(work, self.hosting, self.graph)

    def _again(self) -> None:
        """The arrays of a checkpoint once more, for binding has reset environments outside them;
        no call has run, and the replay is as it was."""
        if self._resumed:
            without = (restoring.REPLAY, *self._resumed.anew)
            restoring.restore(self._resumed.stored, self._arrays, self.graph, without=without)
            self._resumed = None

    def _clock(self, iterations: int, at: int) -> Clock:
        if not self.emulate:
            return RealClock()
        return VirtualClock(
            completions(self.plan, self.graph, self.system.platform, iterations), at
        )

    def _kept(self) -> dict[str, str]:
        """What the best policy consists of: its copy → the array that changes."""
        kept = {"best.policy": self._name}
        return kept | ({STATISTICS: "normalise.obs"} if "normalise.obs" in self._arrays else {})

    def _policy(self, which: Literal["last", "best"]) -> Policy:
        """The policy over this trainer's own arrays."""
        names = self._kept().items()
        found = {
            name: self._arrays[best if which == "best" else self._newest(name)]
            for best, name in names
        }
        return Policy(self.system, self._acting, found[self._name], found.get("normalise.obs"))

    def _judge(
        self, policy: Literal["last", "best"], episodes: int, which: str
    ) -> evaluation.Evaluation:
        from pearl_devices.primitives.math.rng import key

        seed = key(self.seed, f"evaluation {which}")
        return evaluation.evaluate(self._policy(policy), episodes, seed)

    def _periodic(self, state: State) -> evaluation.Evaluation:
        """The current policy, judged amid a run."""
        episodes, which = self.system.train.evaluate_episodes, f"periodic {state.iteration}"
        found = self._heard(state, lambda: self._judge("last", episodes, which))
        if found.cut and not state.evaluation_cuts:
            at = state.iteration * self.graph.env_steps
            state.log.note(f"env step {at}: in evaluation {found.text}", restarts=0)
        state.evaluation_cuts += found.cut
        return found

    def _final(self, state: State) -> Finals:
        """The best policy and the last, where that is another, judged in the same episodes."""
        episodes, kept = self.system.train.final_episodes, self._kept().items()
        best = last = self._heard(state, lambda: self._judge("best", episodes, "final"))
        if any((self._arrays[b] != self._arrays[self._newest(n)]).any() for b, n in kept):
            last = self._heard(state, lambda: self._judge("last", episodes, "final"))
        for found in {id(each): each for each in (best, last)}.values():
            if found.cut:
                state.log.note(f"in the final evaluation {found.text}", restarts=0)
        return Finals(best, last)

    def _heard(
        self, state: State, work: Callable[[], evaluation.Evaluation]
    ) -> evaluation.Evaluation:
        """An evaluation; one whose environment failed is left out where the spec says `restart`."""
        try:
            return work()
        except EnvironmentFailed as error:
            if self.system.train.on_env_failure != "restart":
                raise
            state.log.note(f"{error}; this evaluation is left out", restarts=0)
            return evaluation.Evaluation((), 0, 0)

    def _keep(self) -> None:
        for best, name in self._kept().items():
            self._arrays[best][...] = self._arrays[self._newest(name)]

    def _settled(self, iteration: int) -> None:
        self._at = iteration

    def _newest(self, name: str) -> str:
        """Where the newest version of an array is."""
        return channels.current(self.protocol, name, self._at)

    def _about(self, done: State) -> dict[str, Any]:
        progress: dict[str, Any] = plain(vars(done) | {"log": vars(done.log)})
        return {
            "spec": plain(self.system.raw),
            "plan": self.plan.to_json(),
            "emulate": self.emulate,
            "seed": self.seed,
            "progress": progress,
            "environments": self._snapshot(),
        }

    def _save(self, path: Path, done: State) -> None:
        checkpoint.save(path, self._held(), self._about(done))

    def _held(self) -> Buffers:
        """The arrays as a checkpoint holds them."""
        replay = self.system.train.checkpoint_replay
        return restoring.kept(self._arrays, self.graph, replay=replay)

    def _nbytes(self) -> int:
        return sum(array.nbytes for array in self._held().values())

    def _save_run(self, folder: Path, done: State, pace: checkpoint.Pace | None = None) -> None:
        """Both policies and the checkpoint of a run. Until one has been evaluated, the best policy
        is the last. pace: told what it took."""
        begin_s = time.monotonic()
        if done.best_mean is None:
            self._keep()
        env_steps = done.iteration * self.graph.env_steps
        for which, name in FILES.items():
            policy = self._policy("best" if which == "best" else "last")
            policy.save(folder / name, which=which, env_steps=env_steps)
        self._save(folder / CHECKPOINT, done)
        if pace:
            pace.wrote(self._nbytes(), time.monotonic() - begin_s)

    def _take_in(self, stored: checkpoint.Stored, steps: int | None = None) -> Buffers:
        """The arrays of a checkpoint, once all of them are sound; returns the constants of a run of
        so many env steps (default: the spec's)."""
        kernels = [t.kernel for t in self.graph.tasks if t.kernel.kind == "replay_insert"]
        inserted = kernels[0].dim("envs") if kernels else 1
        if self._any_order:
            inserted = gcd(*self.protocol.split.shares)
        restoring.check(stored, self._arrays, self.graph, self.system, inserted)
        self.seed = stored.about["seed"]
        self._start(self.seed, steps)
        given = resuming.constants(self._arrays)
        restoring.restore(stored, self._arrays, self.graph)
        return given

    def _begin(self, steps: int | None) -> State:
        """The state of a run of so many env steps, by default the spec's, before its first."""
        total = self.system.train.steps if steps is None else steps
        self._start(self.seed, total)
        return State(total_steps=total)

    def _resume(self, file: Path, steps: int | None) -> State:
        """The state of a checkpoint, and its arrays; schedules follow the steps that the run now
        has."""
        stored = checkpoint.load(file)
        about = stored.about
        resuming.check_spec(about["spec"], plain(self.system.raw), file)
        resuming.check_seed(about["seed"], self._seed_given, file)
        state, per = State.of(about["progress"], f"{file}: progress"), self.graph.env_steps
        in_spec, spec_now = about["spec"]["train"]["steps"], self.system.train.steps
        total, before = resuming.total_steps(state, per, steps, in_spec, spec_now, file)
        state.total_steps = total
        if not self._plan_given and about["plan"] != self.plan.to_json():
            self._become(_own_plan(about, self.system, file))
        try:
            given = self._take_in(stored, total)
        except SpecError as error:
            if about["plan"] == self.plan.to_json():
                raise
            way = f"{file}: its own plan is another than the one given: leave that out (--plan)"
            raise SpecError(*error.problems, way) from None
        anew: list[str] = []
        if total != before:
            anew = sorted(n for n, a in given.items() if (self._arrays[n] != a).any())
            for name in anew:
                self._arrays[name][...] = given[name]
            text = f"env step {state.iteration * per}: the run is now to end at {total} env steps"
            names = f"; set anew for that: {', '.join(anew)}" if anew else ""
            _told(state, f"{text}, no longer at {before}{names}")
        self._resumed = _Resumed(stored, about["environments"], tuple(anew))
        if restoring.CURSOR in self._arrays and restoring.CURSOR not in stored.places:
            self._refill(state)
        if about["pearl_version"] != pearl_version():
            state.log.note(
                f"{file} was written by pearl {about['pearl_version']}, and pearl "
                f"{pearl_version()} goes on: the run need not equal one that went through",
                restarts=0,
            )
        return state

    def _refill(self, state: State) -> None:
        """Go on from a checkpoint without its replay: nothing is under way, environments outside
        the arrays start anew, and learning waits until the replay is as full as it first was."""
        assert self._resumed
        starts = self.system.algorithm.learning_starts
        warm = state.refilled - (-starts // self.graph.env_steps)
        state.learnt = state.learning(warm)
        state.refilled = state.drained = state.iteration
        if "any_order.acted" in self._arrays:
            self._arrays["any_order.acted"][:] = 0
        anew = (*self._resumed.anew, "env.", "any_order.")
        self._resumed = _Resumed(self._resumed.stored, None, anew)
        _told(
            state,
            f"{self._resumed.stored.path} holds no replay: learning goes on once {starts} env "
            "steps have filled it anew, and the run will not equal one that went through",
        )

    def _become(self, plan: Plan) -> None:
        """The trainer of another plan."""
        seed_given = self._seed_given
        new = Trainer(self.system, plan, emulate=self.emulate, seed=self.seed)
        vars(self).update(vars(new) | {"_seed_given": seed_given})


@dataclass(frozen=True)
class _Resumed:
    """The checkpoint that a run goes on from. environments: what brings those outside the arrays
    back; None: they start anew. anew: beginnings of the names of arrays that stay as they are."""

    stored: checkpoint.Stored
    environments: Mapping[str, Any] | None
    anew: tuple[str, ...] = ()


def _resumed(file: Path) -> _Resumed:
    """A checkpoint of this very run, from which it goes on as it is."""
    stored = checkpoint.load(file)
    return _Resumed(stored, stored.about["environments"])


def _told(state: State, text: str) -> None:
    """Notes what a run is about to do with its events, and says it at once."""
    state.log.note(text, restarts=0)
    LOG.warning(text)


def _decided(state: State, text: str) -> None:
    """Notes what re-planning decided, with the run's events and apart; EVENTS of them at most."""
    state.log.note(text, restarts=0)
    if len(state.decisions) < external_envs.EVENTS:
        state.decisions.append(text)


@contextmanager
def _bringing_back() -> Iterator[None]:
    """What goes wrong while calls are bound and environments come back, as one kind of error."""
    try:
        yield
    except (single_lane.LaneError, ValueError) as error:
        raise UnsupportedError(str(error)) from error
