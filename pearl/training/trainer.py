"""`compile` a system into a `Trainer`, and train it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from pearl import run_folder
from pearl.errors import SpecError
from pearl.files import locking
from pearl.graph.task_graph import TaskGraph
from pearl.planner import plan_cache
from pearl.planner.planner import as_system, build_problem, skipping_timing_if_busy
from pearl.planning.plans import Plan, load_plan, plain
from pearl.planning.runs import CHECKPOINT as CHECKPOINT
from pearl.planning.runs import SPEC_MARK, Run, check_folder
from pearl.report.report import Report
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.seeds import checked_seed
from pearl.spec.reading import System, load
from pearl.spec.trust import record_trusted, require_trusted
from pearl.training import plan_change
from pearl.training.checkpoints import checkpoint, restoring, resuming, warm_start
from pearl.training.checkpoints.state import RunState
from pearl.training.compiled import (
    CompiledPlan,
    check_devices,
    compile_plan,
    recompile,
    require_devices,
)
from pearl.training.evaluations import evaluation
from pearl.training.interruption import interruptible
from pearl.training.policy import Policy
from pearl.training.policy_export import export
from pearl.training.progress import in_notebook, progress_display
from pearl.training.run import run_training
from pearl.training.session import Session
from pearl.training.steering import Callback, CallbackList, Listener
from pearl.training.training_run import TrainingRun
from pearl_devices.validation import check_type, is_whole, quote

LOG = logging.getLogger("pearl")


def compile(
    system: System | str | Path | Mapping[str, Any],
    *,
    set: Mapping[str, object] | None = None,
    plan: Plan | str | Path | None = None,
    emulate: bool = False,
    seed: int | None = None,
) -> Trainer:
    """Compile a system into a trainer. Kernels are bound when it first trains.

    Args:
        system: a loaded system, a spec, or the path or name of one.
        set: values that override the spec's, with dotted keys.
        plan: the plan, or its file; None: make one.
        emulate: compute on the host, on the plan's virtual clock; all figures are labelled
            simulated.
        seed: of all random streams; None: the spec's.

    Examples:
        >>> trainer = pearl.compile("q_learning_frozenlake", set={"train.steps": 500})
        >>> trainer.train(seed=1).status
        'done'

    Raises:
        SpecError: the spec or the plan is wrong, or the plan needs devices that are not here.
    """
    begin_s = time.perf_counter()
    system = as_system(system, set)
    if plan is None:
        chosen = plan_cache.find_plan(build_problem(system))
    else:
        chosen = plan if isinstance(plan, Plan) else load_plan(plan)
    made = compile_plan(system, chosen, emulate=emulate, check=plan is not None)
    trainer = Trainer._from_compiled(made, seed, plan_given=plan is not None)
    trainer.planned_s = time.perf_counter() - begin_s
    if not emulate:
        require_devices(made)
    return trainer


def plan_of_run(folder: Path, system: System) -> Plan | None:
    """Return the plan of the checkpoint in `folder`, which a resumed run continues; None without
    one.

    Raises:
        SpecError: the checkpoint does not fit the system.
    """
    file = run_folder.find(folder, CHECKPOINT)
    if file is None:
        return None
    about = checkpoint.load(file).about
    resuming.check_spec(about["spec"], plain(system.raw), file)
    return recompile(about, system, file).plan


def require_trusted_run(folder: Path, *, trust: bool) -> None:
    """Refuse a checkpoint whose spec names code, unless this user has trained by it or trusts it.

    Imports nothing.

    Raises:
        SpecError: the code is not trusted.
    """
    if file := run_folder.find(folder, CHECKPOINT):
        require_trusted(checkpoint.load(file).about["spec"], folder, trust=trust)


class Trainer:
    """A system with its plan, ready to train. Build it with `pearl.compile` or `Trainer.load`.

    session: arrays and progress; a change of the plan replaces it.
    planned_s: seconds that `compile` took, until a run has counted them.
    """

    planned_s = 0.0

    def __init__(
        self, system: System, plan: Plan, *, emulate: bool = False, seed: int | None = None
    ) -> None:
        self._begin_with(compile_plan(system, plan, emulate=emulate), seed, plan_given=False)

    @classmethod
    def _from_compiled(cls, made: CompiledPlan, seed: int | None, *, plan_given: bool) -> Trainer:
        """plan_given: a resumed run keeps this plan, whatever plan its checkpoint has."""
        trainer = cls.__new__(cls)
        trainer._begin_with(made, seed, plan_given=plan_given)
        return trainer

    def _begin_with(self, made: CompiledPlan, seed: int | None, *, plan_given: bool) -> None:
        self._seed_given, self._plan_given = seed, plan_given
        of_spec = made.system.train.seed
        self.session = Session(made, of_spec if seed is None else checked_seed(seed))

    @property
    def system(self) -> System:
        """The system as loaded."""
        return self.session.compiled.system

    @property
    def plan(self) -> Plan:
        """The plan that the trainer follows."""
        return self.session.compiled.plan

    @property
    def graph(self) -> TaskGraph:
        """The system's task graph."""
        return self.session.compiled.graph

    @property
    def protocol(self) -> ExecutionSchedule:
        """The firings of every lane of the plan."""
        return self.session.compiled.protocol

    @property
    def emulate(self) -> bool:
        """Whether the host computes everything, on the plan's virtual clock."""
        return self.session.compiled.emulate

    @property
    def seed(self) -> int:
        """The seed of all random streams."""
        return self.session.seed

    def train(
        self,
        *,
        steps: int | None = None,
        seed: int | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        start_from: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        progress: Listener | None = None,
        replan: bool = False,
    ) -> Run:
        """Train from the start, or with `resume` from the checkpoint in `out`.

        Args:
            steps: env steps over all environments, rounded up to a whole iteration; None: the
                spec's. A resumed run keeps its own count, unless it is done or the spec has another
                count now. Learning rates and exponents that depend on the steps follow a new count.
            seed: None: the trainer's.
            out: folder for plan.json, run.json, metrics.csv, report.html, trace.json and the
                checkpoint.
            resume: continue from the checkpoint in `out`, with its plan unless `compile` was given
                one. Without a checkpoint the run begins. All keys of `train` but the seed may have
                changed.
            start_from: a run folder, checkpoint, policy file or torch state_dict with the first
                networks (`pearl.training.checkpoints.warm_start`); a resumed run has its own.
            callbacks: called during the run, in this order (`pearl.Callback`). If one returns
                `pearl.STOP`, the run ends as `stopped`, with a checkpoint and the final evaluation.
                If one raises, the run ends as `failed`, with a checkpoint, and the exception is
                raised.
            progress: a function called a few times a second, like `on_progress` of a last callback;
                its result is ignored. In a notebook without callbacks, the default draws a bar.
            replan: at a checkpoint whose period is more than 15 % off the predicted one, search a
                plan that is better at the measured times, and continue with it. Parameters, replay,
                random streams and counters stay. Measured times decide, so the run is not
                bit-reproducible.

        Ctrl-C ends the run after the present iterations, with a checkpoint and status
        `interrupted`; a second Ctrl-C raises KeyboardInterrupt. SIGTERM and SIGHUP end the run in
        the same way, and then the process. If a loss is not finite, a lane cannot continue, or
        user code raises, the run ends as `failed` with a `message`, and the last checkpoint stays.
        If an environment fails, it is restarted; unless the spec says `restart`, the run then ends
        as `failed`, with a checkpoint. Afterwards `policy` is the best evaluated one.

        Raises:
            SpecError: an argument is wrong, or the run cannot continue from the checkpoint.
        """
        problems = check_type("train: out", out, str | Path | None, "a path")
        problems += check_type("train: start_from", start_from, str | Path | None, "a path")
        if steps is not None and (not is_whole(steps) or steps < 1):
            problems.append(f"train: steps is {quote(steps)}; a whole number from 1 on is needed")
        if problems:
            raise SpecError(*problems)
        check_devices(self.session.compiled)
        # Code of the user may change the working folder amid the run.
        folder = Path(out).absolute() if out is not None else None
        if replan:
            plan_change.check(self.session, folder)
        if resume and folder is None:
            raise SpecError("train: resume needs `out`, the folder of the run")
        if seed is not None:
            self.session.seed = self._seed_given = checked_seed(seed)
        planned_s, self.planned_s = self.planned_s, 0.0
        with ExitStack() as stack:
            if progress is None and not callbacks and in_notebook():
                progress = stack.enter_context(progress_display())
            callback_list = CallbackList.from_arguments(callbacks, progress)
            stack.enter_context(skipping_timing_if_busy(self.system))
            interruption = stack.enter_context(interruptible())
            if folder is None:
                self._begin(steps, start_from)
            else:
                check_folder(folder)
                stack.enter_context(locking(folder))
                self._begin_or_resume(folder, steps, start_from, resume=resume)
                record_trusted(self.system.raw)
                self.plan.save(run_folder.clear(folder, "plan.json"))
                text = yaml.safe_dump(plain(self.system.raw), sort_keys=False, allow_unicode=True)
                run_folder.write(folder, "spec.yaml", (SPEC_MARK + text).encode())
            run = TrainingRun(
                self.session,
                folder,
                callback_list,
                interruption,
                replan=replan,
                planned_s=planned_s,
            )
            try:
                return run_training(run)
            finally:
                self.session = run.session

    def _begin(self, steps: int | None, start_from: str | Path | None) -> None:
        """Fill the arrays as before the first iteration. steps: env steps; None: the spec's."""
        self.session.start(self.seed, self.system.train.steps if steps is None else steps)
        if start_from is not None:
            for text in warm_start.load_networks(self.session, Path(start_from)):
                self.session.state.log.announce(text)

    def _begin_or_resume(
        self, folder: Path, steps: int | None, start_from: str | Path | None, *, resume: bool
    ) -> None:
        """Fill the arrays as a run in `folder` begins or continues with."""
        file = run_folder.find(folder, CHECKPOINT)
        if resume and file and start_from is not None:
            raise SpecError(
                f"train: start_from is {start_from}, and the run in {folder} has its own "
                "networks; leave one of the two out (start_from, resume)"
            )
        if resume and file:
            self.session = resuming.resume(
                self.session,
                checkpoint.load(file),
                steps,
                seed=self._seed_given,
                own_plan=not self._plan_given,
            )
        elif file:
            raise SpecError(
                f"train: {folder} already holds a run; continue it (resume), or give "
                "another folder, else its checkpoint would be lost"
            )
        else:
            self._begin(steps, start_from)
            if resume:
                text = f"there is no checkpoint in {folder}: the run starts from the beginning"
                self.session.state.log.announce(text)
        if restoring.CURSOR in self.session.arrays and not self.system.train.checkpoint_replay:
            self.session.state.log.announce(
                "train.checkpoint_replay is false: a run resumed from a checkpoint refills its "
                "replay first and does not equal an uninterrupted run",
            )

    def evaluate(self, episodes: int = 20, seed: int = 0) -> list[float]:
        """Return the returns of `episodes` new episodes of the greedy policy on the spec's
        environment.

        If an episode is cut after `train.evaluate_max_steps`, the logger "pearl" gets a warning.

        Raises:
            EnvironmentFailed: the environment raised, or did not answer.
        """
        found = evaluation.evaluate(self.policy, episodes, checked_seed(seed))
        if found.cut:
            LOG.warning(found.text)
        return [*found.returns]

    @property
    def policy(self) -> Policy:
        """The policy without exploration; after training, the best evaluated one."""
        return self.session.policy("best").copy()

    @property
    def policy_last(self) -> Policy:
        """The policy without exploration, as training left it."""
        return self.session.policy("last").copy()

    def save(self, path: str | Path) -> None:
        """Write the trainer to one file, atomically."""
        record_trusted(self.system.raw)
        self.session.save(Path(path), RunState(total_steps=self.system.train.steps))

    def export(self, path: str | Path) -> dict[str, Any]:
        """Write `policy` as a torch state_dict (safetensors, no pickle); return its description.

        See `pearl.training.policy_export` for names and description.
        """
        return export(self.policy, path)

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False) -> Trainer:
        """Load a trainer from a file written by `save` or from a run folder.

        Args:
            trust: import the code that the spec names, although this user has not trained by that
                spec. Without `trust`, such a file is a SpecError, and nothing is imported
                (`docs/trust.md`).

        Raises:
            SpecError: the file is missing, damaged or of another version, or its code is not
                trusted.
        """
        stored = checkpoint.load(run_folder.file_of(Path(path), CHECKPOINT))
        about = stored.about
        require_trusted(about["spec"], path, trust=trust)
        trainer = cls(
            load(about["spec"]),
            load_plan(about["plan"]),
            emulate=about["emulate"],
            seed=about["seed"],
        )
        trainer.session.load_checkpoint(stored)
        return trainer

    def report(self, run: Run | None = None) -> Report:
        """Return the assignment report; with `run`, predictions next to measurements."""
        return Report(self.plan, run, self.system)
