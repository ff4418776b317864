"""`compile` a system into a `Trainer`, and train it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pearl import checkpoint, evaluation
from pearl.algorithms import algorithm
from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.plan_check import check_plan, completions, stated_costs
from pearl.planning import as_system
from pearl.planning import plan as make_plan
from pearl.plans import Plan, load_plan, plain
from pearl.report import Report
from pearl.runs import Progress, Run
from pearl.runtime import lane
from pearl.runtime.clock import Clock, RealClock, VirtualClock
from pearl.spec import System, load
from pearl.training import ROWS, Job, Schedule, State, cpu_seconds, outcome, timings, train
from pearl_devices import Buffers, Device, Kernel, backend, buffers

CHECKPOINT = "checkpoint.safetensors"
PROFILE_ROUNDS = 30
Listener = Callable[[Progress], None]


def compile(
    system: System | str | Path | Mapping[str, Any],
    *,
    set: Mapping[str, object] | None = None,
    plan: Plan | None = None,
    emulate: bool = False,
    seed: int | None = None,
) -> Trainer:
    """Spec → graph → costs → plan → a trainer whose kernels are bound when it first trains.

    set: values that override the spec's, keys dotted. plan: train this one instead of solving.
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
    if plan is None:
        plan = make_plan(system)
    else:
        _check(plan, system)
    lane.refuse_slack(plan)
    trainer = Trainer(system, plan, emulate=emulate, seed=seed)
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
        lane.one_lane_order(plan, trainer.graph)
    return trainer


def _check(plan: Plan, system: System) -> None:
    """A plan that was given: sound in itself, and of modes that the devices offer.

    Its times are taken as it states them, so no estimate is asked for and nothing is measured.
    """
    graph = algorithm(system.algorithm.name).graph(system)
    check_plan(plan, graph, stated_costs(plan, graph, system.platform))
    problems = []
    for job in set(lane.jobs(plan, graph, system.platform, emulate=False).values()):
        device = system.platform.device(plan.task(job.tasks[0]).device)
        offered = backend(device.kind).offers(job.kernel, device)
        if job.variant not in [name for name, _ in offered]:
            problems.append(
                f"plan: {job.name} runs as {job.variant!r} on {device.name}, which offers "
                f"{offered or 'nothing'} for it"
            )
    if problems:
        raise SpecError(*sorted(problems))


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
        self.seed = system.train.seed if seed is None else seed
        self.graph = algorithm(system.algorithm.name).graph(system)
        self._jobs = lane.jobs(plan, self.graph, system.platform, emulate=emulate)
        self._arrays: Buffers = {}
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
    ) -> Run:
        """Train from the start, or with `resume` from the checkpoint in `out`.

        steps: env steps over all environments, rounded up to a whole iteration (default: the
        spec's). seed: instead of the trainer's. out: folder for plan.json, run.json, metrics.csv,
        report.html and the checkpoint. progress: called a few times a second.
        Ctrl-C ends the run after the iterations in hand, with a checkpoint; its status is then
        `interrupted`. A loss that is not finite ends it with status `failed`, the last checkpoint
        untouched. Afterwards `policy` is the best evaluated one.
        """
        total = steps if steps is not None else self.system.train.steps
        if total < 1:
            raise SpecError(f"train: steps is {total}; at least 1 is needed")
        folder = Path(out) if out is not None else None
        if resume and folder is None:
            raise SpecError("train: resume needs `out`, the folder of the run to go on with")
        if seed is not None:
            self.seed = seed
        state = State()
        self._start(self.seed)
        if folder is not None:
            if resume:
                state = self._resume(folder / CHECKPOINT)
            elif (folder / CHECKPOINT).exists():
                raise SpecError(
                    f"train: {folder} already holds a run; go on with it (resume), or give another "
                    "folder, else its checkpoint would be lost"
                )
            folder.mkdir(parents=True, exist_ok=True)
            self.plan.save(folder / "plan.json")
            text = yaml.safe_dump(plain(self.system.raw), sort_keys=False, allow_unicode=True)
            write_atomically(folder / "spec.yaml", text.encode())
        return self._run(state, -(-total // self.graph.env_steps), folder, progress)

    def evaluate(self, episodes: int = 20, seed: int = 0) -> list[float]:
        """Returns of `episodes` fresh episodes of the greedy policy on the spec's environment."""
        return evaluation.returns(self.policy, episodes, seed)

    @property
    def policy(self) -> evaluation.Policy:
        """The policy without exploration: after training the best evaluated."""
        return evaluation.Policy(self.system, self._acting, self._arrays["best.policy"].copy())

    def save(self, path: str | Path) -> None:
        """Write everything this trainer is made of to one file, atomically."""
        self._save(Path(path), State())

    @classmethod
    def load(cls, path: str | Path) -> Trainer:
        """A trainer from a file written by `save` or from a run folder.

        A file that is missing, damaged or of another version is a SpecError.
        """
        file = Path(path) / CHECKPOINT if Path(path).is_dir() else Path(path)
        arrays, about = checkpoint.load(file)
        trainer = cls(
            load(about["spec"]),
            load_plan(about["plan"]),
            emulate=about["emulate"],
            seed=about["seed"],
        )
        checkpoint.restore(arrays, trainer._arrays, file)
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

    def _start(self, seed: int) -> None:
        """Fill all arrays as they are before the first env step, in place once they exist."""
        from pearl_devices.primitives.rng import key

        kernels = {job.name: job.kernel for job in self._jobs.values()}.values()
        buffers.allocate(kernels, self._arrays)
        for array in self._arrays.values():
            array[...] = 0
        for name, array in self._arrays.items():
            if name.startswith("rng."):
                array[0] = key(seed, name.removeprefix("rng."))
        algorithm(self.system.algorithm.name).initialise(self._arrays, self.system, seed)
        self._arrays["best.policy"] = self._arrays[self._name].copy()

    def _run(
        self, state: State, iterations: int, folder: Path | None, progress: Listener | None
    ) -> Run:
        begin_s, begin_cpu_s = time.perf_counter(), cpu_seconds()
        per, a = self.graph.env_steps, self.system.algorithm
        options, warm = self.system.train, -(-a.learning_starts // per)
        order = (
            lane.program_order(self.graph)
            if self.emulate
            else lane.one_lane_order(self.plan, self.graph)
        )
        learning = algorithm(a.name).LEARNING
        work = Job(
            graph=self.graph,
            plan=self.plan,
            arrays=self._arrays,
            steps=lane.bind(order, self._jobs, learning, self._arrays),
            schedule=Schedule(
                total=iterations,
                warm=warm,
                steady=warm + -(-iterations // 10),
                evaluate_every=-(-options.evaluate_every // per),
                checkpoint_every=-(-options.checkpoint_every // per),
                metrics_every=max(iterations // ROWS, 1),
            ),
            clock=self._clock(iterations, state.iteration),
            evaluate=lambda which: self._judge(self._name, options.evaluate_episodes, which),
            keep=self._keep,
            save=None if folder is None else lambda now: self._save(folder / CHECKPOINT, now),
            metrics=None if folder is None else folder / "metrics.csv",
            progress=progress,
        )
        status, times_ns = train(work, state)
        if state.best_mean is None:
            self._keep()
        finals = (
            [] if status != "done" else self._judge("best.policy", options.final_episodes, "final")
        )
        rows = timings(work, {} if self.emulate else times_ns, PROFILE_ROUNDS)
        run = outcome(
            work,
            state,
            status,
            rows,
            wall_s=time.perf_counter() - begin_s,
            cpu_s=cpu_seconds() - begin_cpu_s,
            final_returns=finals,
            out=None if folder is None else str(folder),
        )
        if folder is not None:
            run.save(folder / "run.json")
            self.report(run).save(folder / "report.html")
            if status == "done":
                self._save(folder / CHECKPOINT, state)
        return run

    def _clock(self, iterations: int, at: int) -> Clock:
        if not self.emulate:
            return RealClock()
        return VirtualClock(
            completions(self.plan, self.graph, self.system.platform, iterations), at
        )

    def _judge(self, parameters: str, episodes: int, which: str) -> list[float]:
        from pearl_devices.primitives.rng import key

        policy = evaluation.Policy(self.system, self._acting, self._arrays[parameters])
        return evaluation.returns(policy, episodes, key(self.seed, f"evaluation {which}"))

    def _keep(self) -> None:
        self._arrays["best.policy"][...] = self._arrays[self._name]

    def _about(self, done: State) -> dict[str, Any]:
        progress: dict[str, Any] = plain(vars(done))
        return {
            "spec": plain(self.system.raw),
            "plan": self.plan.to_json(),
            "emulate": self.emulate,
            "seed": self.seed,
            "progress": progress,
        }

    def _save(self, path: Path, done: State) -> None:
        checkpoint.save(path, self._arrays, self._about(done))

    def _resume(self, file: Path) -> State:
        arrays, about = checkpoint.load(file)
        old, new = _flat(about["spec"]), _flat(plain(self.system.raw))
        changed = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
        if changed:
            raise SpecError(
                *(
                    f"{file}: {k} was {old.get(k)!r} and is now {new.get(k)!r}; a run goes on only "
                    "with the spec it began with"
                    for k in changed
                )
            )
        checkpoint.restore(arrays, self._arrays, file)
        self.seed = about["seed"]
        return State(**about["progress"])


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
    return found
