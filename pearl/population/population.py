"""`sweep`: a population of runs over the cores of this machine, from what is asked to its table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.files import held
from pearl.formatting import count, listed
from pearl.planning.plans import load_plan, plain
from pearl.planning.runs import CHECKPOINT, load_metrics
from pearl.population import cluster_executor, packing, precompile
from pearl.population import search as ways
from pearl.population.cluster_executor import ClusterExecutor
from pearl.population.display import Row, SweepDisplay
from pearl.population.driver import Event, Journal, StageEnd, drive, replay_history
from pearl.population.local_executor import LocalExecutor
from pearl.population.members import Population, loaded, population
from pearl.population.packing import Packing, Planner
from pearl.population.results import Status, Sweep, SweepRun, summary
from pearl.population.run_files import SweepFolder
from pearl.population.schedulers import RunStage
from pearl.population.search import ASHA as ASHA
from pearl.population.search import TOURNAMENT as TOURNAMENT
from pearl.population.sweep_file import FILE, load_sweep_file
from pearl.population.tournament import Tournament
from pearl.training.compiled import compile_plan
from pearl.training.interruption import Interruption, interruptible
from pearl.training.run import end_solvers
from pearl_devices.validation import mistyped

RESTARTS = 2
"""A run whose process dies is started so often again."""


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
    """Train every combination of seeds and values, each run a process of its own on its own cores.

    seeds: of every setting; None: the spec's. over: dotted key → values.
    set: values that override the spec's in all runs.
    asha: {eta, min_steps}: settings that are not among the best 1/eta at a rung go on no further.
    tournament: {rounds, members, board}: rounds begin from a leaderboard, with values changed.
    out: folder for the runs and sweep.json, sweep.csv, sweep.html; needed unless `dry_run`.
    resume: go on with the population in `out`; runs that are done are not run again.
    restarts: of a run whose process died, at most.
    dry_run: decide, and run nothing.
    on: None: this machine; ray: all nodes of the Ray cluster that runs (`docs/sweep.md`).
    watch: hears of every event.

    Ctrl-C ends all runs with checkpoints, and the sweep is `interrupted`; SIGTERM and SIGHUP end it
    likewise, and then the process.

    Raises:
        SpecError: something asked for is wrong; nothing has run then.
        InfeasibleError: no plan meets the limits.
    """
    watch = watch or SweepDisplay()
    kind, options = ways.search_kind(asha, tournament)
    if type(restarts) is not int or restarts < 0:
        raise SpecError(f"restarts is {restarts!r}; a whole number from 0 on is needed")
    asked = population(spec, seeds=seeds, over=over, set=set)
    ways.check(kind, options, asked, seeds_given=seeds is not None)
    if out is None and not dry_run:
        raise SpecError("sweep: `out`, a folder for the runs, is needed")
    if problems := mistyped("sweep: out", out, str | Path | None, "a folder for the runs"):
        raise SpecError(*problems)
    folder = Path(out) if out is not None else None
    past = load_sweep_file(folder, resume=resume) if folder and not dry_run else None
    runner = SweepRunner(spec, set or {}, asked, kind, options, folder, watch, past, on)
    watch.print_event(runner.schedule)
    if folder is None or dry_run:
        return runner.result("planned")
    with interruptible() as interruption, held(folder):
        return runner.run(interruption, restarts)


class SweepRunner:
    """A population under way: its plans, its files, and what became of the runs so far."""

    def __init__(
        self,
        spec: str | Path | Mapping[str, Any],
        set: Mapping[str, object],
        asked: Population,
        kind: str,
        options: Mapping[str, int],
        folder: Path | None,
        watch: SweepDisplay,
        before: Mapping[str, Any] | None,
        on: str | None,
    ) -> None:
        self.asked, self.kind = asked, kind
        self.options, self.folder, self._watch = dict(options), folder, watch
        self.outcomes: dict[str, SweepRun] = {}
        self._nodes = cluster_executor.cluster_nodes(on)
        self._places = cluster_executor.run_hosts(self._nodes) or packing.local_host()
        self._begin_s, self._spent_s = time.monotonic(), 0.0
        self._history: list[Event] = []
        self._unwritten = False
        if before is not None:
            self._history = self._of(before)
            planner, self._packing = self._kept(before)
            self._others: list[Packing] = []
        else:
            self._refuse_others()
            self._packing, *self._others = packing.packings(asked, self._places)
            planner = Planner(self._packing.cores)
            for s, plan in zip(asked.settings, self._packing.plans, strict=True):
                planner.add_plan(s.system, plan)
        systems = {s.name: s.system for s in asked.settings}
        self._files = SweepFolder(folder, planner, systems, partial(loaded, spec, set))
        needs = {s.name: n for s, n in zip(asked.settings, self._packing.needs, strict=True)}
        self._runs = packing.in_order(asked, needs)
        self._scheduler = ways.scheduler(kind, self.options, asked, self._runs)
        self._under_way = replay_history(self._scheduler, self._history)
        stages = self._runs if kind != "tournament" else ways.members(asked, self.options)
        for stage in stages:
            self.outcomes.setdefault(stage.run, SweepRun.waiting(stage))
        count = len(stages) * (self.options["rounds"] if kind == "tournament" else 1)
        self.schedule = packing.sentence(self._packing, self._others, count, self._places)

    def _refuse_others(self) -> None:
        """Raises SpecError where a run of another sweep lies where one of this is to be."""
        first = ways.members(self.asked, self.options) if self.kind == "tournament" else []
        for run in first or [run for runs in self.asked.runs() for run in runs]:
            if self.folder is not None and (self.folder / run.run / "plan.json").exists():
                raise SpecError(
                    f"{self.folder / run.run}: holds a run already, and {FILE} does not say of "
                    "which sweep; name another folder, or move it away"
                )

    # ------------------------------------------------------------------ going on

    def _asked(self) -> dict[str, Any]:
        """What must not change when a population is gone on with."""
        found: dict[str, Any] = {
            "kind": self.kind,
            "options": self.options,
            "seeds": list(self.asked.seeds),
            "over": {key: list(values) for key, values in self.asked.over.items()},
            "spec_sha256": {s.name: s.system.sha256 for s in self.asked.settings},
        }
        return plain(found)  # type: ignore[no-any-return]

    def _of(self, before: Mapping[str, Any]) -> list[Event]:
        """The history of a population that is gone on with, without restarts; of a plain sweep
        without failures, which are tried again.

        Raises:
            SpecError: another population was asked for.
        """
        changed = [key for key, value in self._asked().items() if before.get(key) != value]
        if changed:
            raise SpecError(
                f"{self.folder}: the sweep in it began with another {listed(changed)}; "
                "ask for the same again, or name another folder"
            )
        self._spent_s = float(before.get("wall_s") or 0.0)
        for run in before["runs"]:
            known = {k: v for k, v in run.items() if k in SweepRun.__dataclass_fields__}
            self.outcomes[run["run"]] = SweepRun(**known)
        failed = {e["run"] for e in before["history"] if e["event"] == "end" and e["score"] is None}
        again = failed if self.kind == "sweep" else {*()}
        return [
            e
            for e in before["history"]
            if e["event"] == "start" or (e["event"] == "end" and e["run"] not in again)
        ]

    def _kept(self, before: Mapping[str, Any]) -> tuple[Planner, Packing]:
        """The plans that the population began with, packed into this machine as it is now."""
        assert self.folder is not None
        planner = Planner(int(before["packing"]["cores_per_run"]))
        for s in self.asked.settings:
            if s.name in before["plans"]:
                planner.add_plan(s.system, load_plan(self.folder / before["plans"][s.name]))
        beside = packing.measured_beside()
        return planner, packing.choose_packing(self.asked, planner, beside, self._places)

    # ------------------------------------------------------------------ the run

    def run(self, interruption: Interruption, restarts: int) -> Sweep:
        """Run all there is to run."""
        assert self.folder is not None
        end_solvers()  # the cores are the runs'
        for s in self.asked.settings:
            self._files.of(RunStage("", s.name, s.values, 0, 0))
        self._write("running")
        if not self._prepared(lambda: interruption.asked):
            return self._ended("interrupted")
        journal = Journal(self._history, self._on_event, restarts)
        self._journal = journal
        with self._executor(lambda: interruption.asked) as executor:
            whole = drive(self._scheduler, executor, journal, self._under_way)
        failed = any(r.status in ("failed", "died") for r in self.outcomes.values())
        return self._ended("interrupted" if not whole else "failed" if failed else "done")

    def _executor(self, asked: Callable[[], bool]) -> LocalExecutor | ClusterExecutor:
        """What runs the stages, here or on the nodes."""
        assert self.folder is not None
        packed, folder = self._packing, self.folder
        if not self._nodes:
            return LocalExecutor(
                packed.slots,
                command=self._files.command,
                log=lambda s: folder / "logs" / f"{s.run}.log",
                folder=lambda s: folder / s.run,
                asked=asked,
                look=self._look,
            )
        held = Counter(packed.hosts)
        return ClusterExecutor(
            {n: held[n.name] for n in self._nodes if held[n.name]},
            max(need.cores for need in packed.needs),
            gpus=any(need.shares for need in packed.needs),
            folder=folder,
            files=self._files,
            asked=asked,
            look=self._look,
            say=self._watch.print_event,
        )

    def _prepared(self, asked: Callable[[], bool]) -> bool:
        """Compile every kernel once, where several runs would; False where that was interrupted."""
        assert self.folder is not None
        if len(self._packing.slots) < 2 or self._nodes:  # a node compiles for its runs itself
            return True
        for runs in self.asked.runs():
            run = runs[0]
            _, plan = self._files.of(run)
            made = compile_plan(self._files.system(run), load_plan(plan), check=True)
            if not precompile.needs_compiling(made):
                continue
            self._watch.print_event(f"a short run of {run.setting} first, so that kernels compile once")
            into, log = self.folder / ".first", self.folder / "logs" / "first.log"
            arguments = self._files.train(run, into, precompile.steps(made))
            if not precompile.compile_kernels(arguments, into, log, self._packing.slots[0], asked):
                return False
            precompile.record_compiled(made)
        return True

    def _on_event(self, entry: Event, stage: RunStage, end: StageEnd | None) -> None:
        """Take an event to the runs, and tell it. `_look` writes it down, once slots are filled."""
        assert self.folder is not None
        of_run = [e for e in self._journal.history if e["run"] == stage.run]
        again = sum(e["event"] == "restart" for e in of_run)
        found = SweepRun.waiting(stage, status="running", restarts=again)
        if end is not None and end.status == "done":
            found = SweepRun.done(stage, self.folder / stage.run, again)
        elif end is not None and entry["event"] == "end":
            found = replace(found, status=end.status, message=end.message)
        self.outcomes[stage.run] = found
        self._history, self._unwritten = self._journal.history, True
        if entry["event"] != "start" or entry["why"]:
            self._watch.print_event(self._line(entry, found))

    def _write_and_refresh(self) -> None:
        """Write down what has happened, and draw. What is lost with this process before is decided
        again, and a run that was not seen to end goes on from its checkpoint, where it ends."""
        if self._unwritten:
            self._unwritten = False
            self._write("running")
            self._forget()
        self._watch.refresh(self._rows)

    def _line(self, entry: Event, found: SweepRun) -> str:
        if entry["event"] == "start":
            return f"{found.run}: to {found.steps:,} env steps, {entry['why']}"
        if entry["event"] == "restart":
            return f"{found.run}: {entry['why']}; it goes on from its checkpoint"
        if found.status != "done":
            return f"{found.run}: {found.status}: {found.message}"
        ended = sum(e["event"] == "end" for e in self._journal.history)
        returned = "no return" if found.eval_mean is None else f"return {count(found.eval_mean)}"
        rate = f", {found.env_steps_per_s:,.0f} env steps/s" if found.env_steps_per_s else ""
        after = f"{found.env_steps or 0:,} env steps{rate}"
        return f"{found.run}: {returned} after {after} ({ended} ended)"

    def _forget(self) -> None:
        """Remove the checkpoints of rounds that no round can begin from any more."""
        if not isinstance(self._scheduler, Tournament):
            return
        assert self.folder is not None
        kept = {s.round.run for s in self._scheduler.board}
        for run in (r for r in self.outcomes.values() if r.status == "done"):
            if run.run not in kept:
                with suppress(FileNotFoundError):
                    (self.folder / run.run / CHECKPOINT).unlink()

    def _rows(self) -> list[Row]:
        """The runs for the live table: what has ended, then what is under way."""
        assert self.folder is not None
        begun = [r for r in self.outcomes.values() if r.status != "waiting"]
        rows = []
        for r in sorted(begun, key=lambda r: r.status == "running")[-40:]:
            if r.status == "running":
                with suppress(SpecError):
                    last = (*load_metrics(self.folder / r.run / "metrics.csv"), {})[0:-1][-1:]
                    at = last[0] if last else {}
                    returned = at.get("eval_mean", at.get("mean_return_20"))
                    steps = int(at.get("env_steps", 0))
                    rows.append(Row(r.run, "running", steps, r.steps, returned))
            else:
                rows.append(Row(r.run, r.status, r.env_steps or 0, r.steps, r.eval_mean))
        return rows

    # ------------------------------------------------------------------ results

    def result(self, status: Status) -> Sweep:
        """What there is so far; with intervals and curves once it has ended."""
        ended = status not in ("planned", "running")
        outcomes = list(self.outcomes.values())
        if ended:
            outcomes = [
                replace(r, status="interrupted") if r.status == "running" else r for r in outcomes
            ]
        of: dict[str, list[SweepRun]] = {}
        for r in outcomes:
            of.setdefault(r.setting, []).append(r)
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
        others = [p.to_json() for p in self._others]
        folder = self.folder if ended else None
        return Sweep(
            status=status,
            kind=self.kind,
            name=self.asked.name,
            spec_sha256={s.name: s.system.sha256 for s in self.asked.settings},
            seeds=self.asked.seeds,
            over=self.asked.over,
            options=self.options,
            packing=self._packing.to_json() | {"others": others},
            schedule=self.schedule,
            plans=dict(self._files.plans),
            settings=tuple(summary(runs, folder) for runs in of.values()),
            runs=tuple(outcomes),
            board=board,
            history=tuple(self._history),
            wall_s=self._spent_s + time.monotonic() - self._begin_s,
            out=None if self.folder is None else str(self.folder),
        )

    def _write(self, status: Status) -> None:
        assert self.folder is not None
        self.result(status).save(self.folder / FILE)

    def _ended(self, status: Status) -> Sweep:
        assert self.folder is not None
        found = self.result(status)
        for suffix in ("json", "csv", "html"):
            found.save(self.folder / f"sweep.{suffix}")
        self._forget()
        return found
