"""`sweep`: train a population of runs, on the cores of this machine or of a cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pearl import run_folder
from pearl.errors import SpecError
from pearl.files import locking
from pearl.formatting import count, listed
from pearl.planning.metrics_file import load_metrics
from pearl.planning.plans import load_plan, plain
from pearl.planning.runs import CHECKPOINT
from pearl.population import packing, precompile, search
from pearl.population.display import SweepDisplay
from pearl.population.driver import Event, Journal, StageEnd, drive, replay_history
from pearl.population.local_executor import LocalExecutor
from pearl.population.members import Population, build_population, load_setting
from pearl.population.packing import Packing, Planner
from pearl.population.results import Status, Sweep
from pearl.population.run_files import FILE, SweepFolder, load_sweep_file
from pearl.population.schedulers import RunStage
from pearl.population.search import ASHA as ASHA
from pearl.population.search import TOURNAMENT as TOURNAMENT
from pearl.population.setting_results import SweepRun, summarise
from pearl.population.tournament import Tournament
from pearl.rooms import use_room
from pearl.training.compiled import compile_plan
from pearl.training.interruption import Interruption, interruptible
from pearl_devices.system import explain_no_processes, host_system
from pearl_devices.validation import check_type

RESTARTS = 2
"""Default limit of the restarts of a run whose process dies."""
EXECUTORS = {"ray": "pearl.population.cluster_executor:"}
"""Place other than this machine that can execute a population → its module; needs `cluster`."""
LIVE_RUNS = 40
"""Limit of the runs that the display receives; each running one is a file that is read."""


def sweep(
    spec: str | Path | Mapping[str, Any],
    *,
    seeds: Sequence[int] | None = None,
    over: Mapping[str, Sequence[object]] | None = None,
    set: Mapping[str, object] | None = None,
    asha: Mapping[str, int] | None = None,
    tournament: Mapping[str, int] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    restarts: int = RESTARTS,
    dry_run: bool = False,
    on: str | None = None,
    watch: SweepDisplay | None = None,
) -> Sweep:
    """Train every combination of seeds and values, each run in its own process on its own cores.

    Ctrl-C ends all runs with checkpoints, and the sweep is `interrupted`. SIGTERM and SIGHUP do the
    same and then end the process.

    Args:
        spec: a spec, its file or its name.
        seeds: of every setting; None for the seed of the spec.
        over: dotted key of the spec → values that vary.
        set: dotted key of the spec → value that overrides the spec in all runs.
        asha: {eta, min_steps}: only the best 1/eta of the settings pass each rung.
        tournament: {rounds, members, board}: each round starts from a run on the leaderboard, with
            perturbed values.
        out: folder for the runs and sweep.json, sweep.csv, sweep.html; needed unless `dry_run`.
        resume: resume the sweep in `out`; runs that are done do not run again.
        restarts: limit of the restarts of a run whose process dies.
        dry_run: plan the schedule, and run nothing.
        on: None for this machine; ray for all nodes of the running Ray cluster (`docs/sweep.md`).
        watch: receives every event.

    Examples:
        >>> over = {"algorithm.learning_rate": [0.1, 0.2]}
        >>> sweep = pearl.sweep("q_learning_frozenlake", seeds=range(3), over=over, dry_run=True)
        >>> sweep.status, len(sweep.runs)
        ('planned', 6)

    Raises:
        SpecError: an argument is wrong; nothing has run then.
        InfeasibleError: no plan meets the limits.
    """
    watch = watch or SweepDisplay()
    kind, options = search.search_kind(asha, tournament)
    if type(restarts) is not int or restarts < 0:
        raise SpecError(f"restarts is {restarts!r}; it must be a whole number of at least 0")
    population = build_population(spec, seeds=seeds, over=over, set=set)
    search.check(kind, options, population, seeds_given=seeds is not None)
    if out is None and not dry_run:
        raise SpecError("sweep: `out`, a folder for the runs, is needed")
    if problems := check_type("sweep: out", out, str | Path | None, "a folder for the runs"):
        raise SpecError(*problems)
    folder = Path(out) if out is not None else None
    if not dry_run and not host_system.PROCESSES:
        raise SpecError(
            f"sweep: its runs are processes: {explain_no_processes()}; run them one by one"
        )
    stored = load_sweep_file(folder, resume=resume) if folder and not dry_run else None
    runner = SweepRunner(spec, set or {}, population, kind, options, folder, watch, stored, on)
    watch.print_event(runner.schedule)
    if folder is None or dry_run:
        return runner.result("planned")
    host_system.raise_file_limit()
    with interruptible() as interruption, locking(folder):
        return runner.run(interruption, restarts)


class SweepRunner:
    """Runs a population: it holds the plans, the files and the results so far.

    stored: the sweep.json of a resumed sweep, or None.
    schedule: the packing in one sentence.
    """

    def __init__(
        self,
        spec: str | Path | Mapping[str, Any],
        set: Mapping[str, object],
        population: Population,
        kind: str,
        options: Mapping[str, int],
        folder: Path | None,
        watch: SweepDisplay,
        stored: Mapping[str, Any] | None,
        on: str | None,
    ) -> None:
        self.population, self.kind, self.options = population, kind, dict(options)
        self._folder, self._watch = folder, watch
        self._outcomes: dict[str, SweepRun] = {}
        if on is not None and on not in EXECUTORS:
            allowed = ", ".join(EXECUTORS)
            raise SpecError(f"on is {on!r}; {allowed} is needed, or nothing for this machine")
        self._cluster = use_room(EXECUTORS[on], f"a sweep on {on}") if on else None
        self._nodes: tuple[Any, ...] = self._cluster.nodes() if self._cluster else ()
        hosts = self._cluster.run_hosts(self._nodes) if self._cluster else ()
        self._hosts = hosts or packing.local_host()
        self._begin_s, self._earlier_s = time.monotonic(), 0.0
        self._unwritten = False
        self._other_packings: list[Packing] = []
        history: list[Event] = []
        if stored is not None:
            history = self._load_history(stored)
            planner, self._packing = self._load_plans(stored)
        else:
            self._refuse_other_runs()
            self._packing, *self._other_packings = packing.compare_packings(population, self._hosts)
            planner = Planner(self._packing.cores)
            for s, plan in zip(population.settings, self._packing.plans, strict=True):
                planner.add_plan(s.system, plan)
        systems = {s.name: s.system for s in population.settings}
        self._files = SweepFolder(folder, planner, systems, partial(load_setting, spec, set))
        needs = {s.name: n for s, n in zip(population.settings, self._packing.needs, strict=True)}
        runs = packing.sort_runs(population, needs)
        self._scheduler = search.scheduler(kind, self.options, population, runs)
        self._under_way = replay_history(self._scheduler, history)
        self._journal = Journal(history)
        stages = runs if kind != "tournament" else search.members(population, self.options)
        for stage in stages:
            self._outcomes.setdefault(stage.run, SweepRun.waiting(stage))
        runs_in_all = len(stages) * (self.options["rounds"] if kind == "tournament" else 1)
        self.schedule = packing.describe_packing(
            self._packing, self._other_packings, runs_in_all, self._hosts
        )

    def _refuse_other_runs(self) -> None:
        """Raise SpecError if the folder of a run of this sweep has a run already."""
        tournament = self.kind == "tournament"
        first = search.members(self.population, self.options) if tournament else []
        for run in first or [run for runs in self.population.runs() for run in runs]:
            if self._folder and run_folder.find(self._folder, f"{run.run}/plan.json"):
                raise SpecError(
                    f"{self._folder / run.run}: has a run already, and no {FILE} assigns it to a "
                    "sweep; name another folder, or move the run away"
                )

    # ------------------------------------------------------------------ resuming

    def _fixed_options(self) -> dict[str, Any]:
        """The options that a resumed sweep must repeat."""
        options = {
            "kind": self.kind,
            "options": self.options,
            "seeds": list(self.population.seeds),
            "over": {key: list(values) for key, values in self.population.over.items()},
            "spec_sha256": {s.name: s.system.sha256 for s in self.population.settings},
        }
        return plain(options)  # type: ignore[no-any-return]

    def _load_history(self, stored: Mapping[str, Any]) -> list[Event]:
        """Load the history and the outcomes of a resumed sweep.

        Restarts count from 0 again. Failures of a plain sweep are dropped, so that their runs are
        tried again; other kinds of search have used them for decisions.

        Raises:
            SpecError: the options differ.
        """
        changed = [key for key, value in self._fixed_options().items() if stored.get(key) != value]
        if changed:
            raise SpecError(
                f"{self._folder}: the sweep in it began with another {listed(changed)}; repeat "
                "the options of that sweep, or name another folder"
            )
        self._earlier_s = float(stored.get("wall_s") or 0.0)
        for run in stored["runs"]:
            fields = {k: v for k, v in run.items() if k in SweepRun.__dataclass_fields__}
            self._outcomes[run["run"]] = SweepRun(**fields)
        ends = [e for e in stored["history"] if e["event"] == "end"]
        retried = {e["run"] for e in ends if e["score"] is None and self.kind == "sweep"}
        return [
            e
            for e in stored["history"]
            if e["event"] == "start" or (e["event"] == "end" and e["run"] not in retried)
        ]

    def _load_plans(self, stored: Mapping[str, Any]) -> tuple[Planner, Packing]:
        """Load the plans of a resumed sweep, and pack its runs for the hosts as they are now."""
        assert self._folder is not None
        planner = Planner(int(stored["packing"]["cores_per_run"]))
        for s in self.population.settings:
            if s.name in stored["plans"]:
                name = stored["plans"][s.name]
                file = run_folder.find(self._folder, name) or self._folder / name
                planner.add_plan(s.system, load_plan(file))
        slowdowns = packing.calibrated_slowdowns()
        return planner, packing.pack(self.population, planner, slowdowns, self._hosts)

    # ------------------------------------------------------------------ running

    def run(self, interruption: Interruption, restarts: int) -> Sweep:
        """Run all stages, and write the results."""
        for s in self.population.settings:
            self._files.write_inputs(RunStage("", s.name, s.values, 0, 0))
        self._write("running")
        if not self._precompile(lambda: interruption.requested):
            return self._finish("interrupted")
        self._journal = Journal(self._journal.history, self._on_event, restarts)
        with self._executor(lambda: interruption.requested) as executor:
            finished = drive(self._scheduler, executor, self._journal, self._under_way)
        failed = any(r.status in ("failed", "died") for r in self._outcomes.values())
        return self._finish("interrupted" if not finished else "failed" if failed else "done")

    def _executor(self, interrupted: Callable[[], bool]) -> Any:
        if not self._cluster or not self._nodes:
            return LocalExecutor(
                self._packing.slots,
                files=self._files,
                interrupted=interrupted,
                poll=self._write_and_refresh,
            )
        slots = Counter(self._packing.hosts)
        return self._cluster.ClusterExecutor(
            {n: slots[n.name] for n in self._nodes if slots[n.name]},
            max(need.cores for need in self._packing.needs),
            gpus=any(need.shares for need in self._packing.needs),
            files=self._files,
            interrupted=interrupted,
            poll=self._write_and_refresh,
            on_event=self._watch.print_event,
        )

    def _precompile(self, interrupted: Callable[[], bool]) -> bool:
        """Compile the kernels that several runs would compile; return False if interrupted."""
        if len(self._packing.slots) < 2 or self._nodes:  # a node compiles for its runs itself
            return True
        for run, *_ in self.population.runs():
            _, plan = self._files.write_inputs(run)
            made = compile_plan(self._files.system(run), load_plan(plan), check=True)
            if not precompile.needs_compiling(made):
                continue
            self._watch.print_event(f"a short run of {run.setting} compiles the kernels first")
            out, log = self._files.path / ".first", self._files.log("first")
            arguments = self._files.train_arguments(run, out, precompile.steps(made))
            cores = self._packing.slots[0]
            if not precompile.compile_kernels(arguments, out, log, cores, interrupted):
                return False
            precompile.record_compiled(made)
        return True

    def _on_event(self, entry: Event, stage: RunStage, end: StageEnd | None) -> None:
        """Update the outcome of a run and print the event.

        The executor calls `_write_and_refresh` once it has filled its slots, so that writing
        sweep.json delays no run.
        """
        restarts = self._journal.restarts_of(stage.run)
        outcome = SweepRun.waiting(stage, status="running", restarts=restarts)
        if end is not None and end.status == "done":
            outcome = SweepRun.done(stage, self._files.path / stage.run, restarts)
        elif end is not None and entry["event"] == "end":
            outcome = replace(outcome, status=end.status, message=end.message)
        self._outcomes[stage.run] = outcome
        self._unwritten = True
        if entry["event"] != "start" or entry["why"]:
            self._watch.print_event(self._describe_event(entry, outcome))

    def _write_and_refresh(self) -> None:
        """Write sweep.json if there are new events, and draw the runs.

        If this process dies before it writes, the resumed sweep makes the same decisions again. A
        run whose end was not written resumes from its checkpoint, and ends there.
        """
        if self._unwritten:
            self._unwritten = False
            self._write("running")
            self._remove_checkpoints()
        self._watch.refresh(self._live_runs)

    def _describe_event(self, entry: Event, run: SweepRun) -> str:
        if entry["event"] == "start":
            return f"{run.run}: to {run.steps:,} env steps, {entry['why']}"
        if entry["event"] == "restart":
            return f"{run.run}: {entry['why']}; the run resumes from its checkpoint"
        if run.status != "done":
            return f"{run.run}: {run.status}: {run.message}"
        ended = sum(e["event"] == "end" for e in self._journal.history)
        returned = "no return" if run.eval_mean is None else f"return {count(run.eval_mean)}"
        rate = f", {run.env_steps_per_s:,.0f} env steps/s" if run.env_steps_per_s else ""
        return f"{run.run}: {returned} after {run.env_steps or 0:,} env steps{rate} ({ended} ended)"

    def _remove_checkpoints(self) -> None:
        """Remove the checkpoints of rounds that are not on the leaderboard of a tournament."""
        if not isinstance(self._scheduler, Tournament):
            return
        on_board = {s.round.run for s in self._scheduler.board}
        for run in (r for r in self._outcomes.values() if r.status == "done"):
            file = run_folder.find(self._files.path, f"{run.run}/{CHECKPOINT}")
            if file is not None and run.run not in on_board:
                file.unlink()

    def _live_runs(self) -> list[SweepRun]:
        """The runs for the display: ended ones, then running ones with their latest metrics."""
        started = [r for r in self._outcomes.values() if r.status != "waiting"]
        runs = []
        for run in sorted(started, key=lambda r: r.status == "running")[-LIVE_RUNS:]:
            if run.status == "running":
                with suppress(SpecError):
                    rows = load_metrics(self._files.path / run.run / "metrics.csv")
                    row = rows[-1] if rows else {}
                    returned = row.get("eval_mean", row.get("mean_return_20"))
                    env_steps = int(row.get("env_steps", 0))
                    runs.append(replace(run, env_steps=env_steps, eval_mean=returned))
            else:
                runs.append(run)
        return runs

    # ------------------------------------------------------------------ results

    def result(self, status: Status) -> Sweep:
        """Assemble the results so far; the intervals and curves only once the sweep has ended."""
        ended = status not in ("planned", "running")
        outcomes = list(self._outcomes.values())
        if ended:
            outcomes = [
                replace(r, status="interrupted") if r.status == "running" else r for r in outcomes
            ]
        runs_of: dict[str, list[SweepRun]] = {}
        for r in outcomes:
            runs_of.setdefault(r.setting, []).append(r)
        board: tuple[dict[str, Any], ...] = ()
        if isinstance(self._scheduler, Tournament):
            board = tuple(
                {
                    "run": s.round.run,
                    "score": s.score,
                    "steps": s.round.steps,
                    "values": dict(s.round.values),
                }
                for s in self._scheduler.board
            )
        others = [p.to_json() for p in self._other_packings]
        folder = self._folder if ended else None
        return Sweep(
            status=status,
            kind=self.kind,
            name=self.population.name,
            spec_sha256={s.name: s.system.sha256 for s in self.population.settings},
            seeds=self.population.seeds,
            over=self.population.over,
            options=self.options,
            packing=self._packing.to_json() | {"others": others},
            schedule=self.schedule,
            plans=dict(self._files.plans),
            settings=tuple(summarise(runs, folder) for runs in runs_of.values()),
            runs=tuple(outcomes),
            board=board,
            history=tuple(self._journal.history),
            wall_s=self._earlier_s + time.monotonic() - self._begin_s,
            out=None if self._folder is None else str(self._folder),
        )

    def _write(self, status: Status) -> None:
        self.result(status).save(run_folder.clear(self._files.path, FILE))

    def _finish(self, status: Status) -> Sweep:
        result = self.result(status)
        for suffix in ("json", "csv", "html"):
            result.save(run_folder.clear(self._files.path, f"sweep.{suffix}"))
        self._remove_checkpoints()
        return result
