"""Runs of cases by seed, kept in a results file, and the command that adds those it lacks.

One run in a process of its own is made after another, and the file is written whole after each: the
command may be stopped at any time and goes on where it was. Runs of other settings than today's are
not counted and are made again. The runs of a peer whose interpreter is not named are called absent.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import (
    ABSENT,
    ONE_THREAD,
    AbsentError,
    answer,
    machine,
    named_pythons,
    run_module,
    verdict,
)
from benchmarks.returns_cases import EPISODES
from benchmarks.returns_table import tables

OURS = "ours"
Results = dict[str, dict[str, dict[str, Any]]]
"""Case → who → {settings, version, seeds: {seed: {final, cpu_s, …}}}."""


def read(path: Path) -> Results:
    """The runs of a results file; none where there is no file. Exits where it is no such file."""
    from pearl.errors import SpecError  # not at the top: a peer's environment may lack it
    from pearl.formats import check_format

    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        check_format("benchmark result", content, str(path))
        runs: Results = content["cases"]
    except SpecError as error:
        sys.exit(str(error))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(f"{path} is no results file of this benchmark ({error}); give another --results")
    return runs


def judge(env_id: str, seed: int, act: Callable[[Any], Any]) -> float:
    """Mean return of EPISODES fresh episodes by the actions of `act`."""
    import gymnasium

    env, returns = gymnasium.make(env_id), []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=1_000_000 * (seed + 1) + episode)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return sum(returns) / len(returns)


@dataclass(frozen=True)
class Kept:
    """A benchmark of this kind.

    name: of its module and its results file. cases: name → case, which has `name`, `seeds` and
    `peers`. settings: of a case and who trains, the digest of what decides a run. one: trains, and
    gives `final`, `version` and what else is kept. peers: peer → what its interpreter must have.
    quick: the name of a case and how many seeds of it, for --quick.
    """

    name: str
    cases: Mapping[str, Any]
    settings: Callable[[Any, str], str]
    one: Callable[[Any, str, int], dict[str, Any]]
    peers: Mapping[str, str]
    quick: tuple[str, int]

    def write(self, path: Path, runs: Results) -> None:
        """The whole file, a run a line, or not at all."""
        from pearl.files import write_atomically
        from pearl.formats import latest

        head = {"schema": latest("benchmark result"), "benchmark": self.name, "machine": machine()}
        lines = []
        for case, by_who in sorted(runs.items()):
            rows = []
            for who, entry in sorted(by_who.items()):
                seeds = sorted(entry["seeds"].items(), key=lambda item: int(item[0]))
                listed = ",\n    ".join(f"{json.dumps(s)}: {json.dumps(r)}" for s, r in seeds)
                text = json.dumps({k: v for k, v in entry.items() if k != "seeds"})[1:-1]
                rows.append(f'  {json.dumps(who)}: {{{text}, "seeds": {{\n    {listed}}}}}')
            lines.append(f" {json.dumps(case)}: {{\n" + ",\n".join(rows) + "}")
        text = json.dumps(head)[:-1] + ', "cases": {\n' + ",\n".join(lines) + "}}\n"
        write_atomically(path, text.encode())

    def current(self, runs: Results, case: Any, who: str) -> dict[str, Any]:
        """Seed → run, of the case's settings as they are now."""
        entry = runs.get(case.name, {}).get(who, {})
        same = bool(entry) and entry["settings"] == self.settings(case, who)
        seeds: dict[str, Any] = entry["seeds"] if same else {}
        return seeds

    def add(self, path: Path, case: Any, who: str, seed: int, run: dict[str, Any]) -> None:
        """Put one run into the file, read anew, since another process may have added its own."""
        runs = read(path)
        seeds = {**self.current(runs, case, who), str(seed): run}
        entry = {"settings": self.settings(case, who), "version": run.pop("version")}
        runs.setdefault(case.name, {})[who] = entry | {"seeds": seeds}
        self.write(path, runs)

    def missing(
        self, runs: Results, cases: Iterable[Any], seeds: int | None, whos: Iterable[str]
    ) -> list[tuple[Any, str, int]]:
        """The runs that the file lacks, in the table's order: ours first, then each peer."""
        lacking = []
        for case in cases:
            for who in whos:
                if who == OURS or who in case.peers:
                    have = self.current(runs, case, who)
                    wanted = range(case.seeds if seeds is None else seeds)
                    lacking += [(case, who, s) for s in wanted if str(s) not in have]
        return lacking

    def start(self, case: Any, who: str, seed: int, python: str) -> dict[str, Any]:
        """A run in a process of its own; exits with its last words if it fails."""
        what, given = f"{case.name}, {who}, seed {seed}", ["--one", case.name, who, str(seed)]
        module = f"benchmarks.{self.name}"
        try:
            found: dict[str, Any] = run_module(what, module, given, python=python, env=ONE_THREAD)
        except AbsentError as error:
            sys.exit(f"{what}: {error}")
        return found

    def made(self, case: Any, who: str, seed: int) -> dict[str, Any]:
        """What `start` has computed: the run with its CPU-seconds."""
        begin = time.process_time()
        run = self.one(case, who, seed)
        rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in run.items()}
        return {"cpu_s": round(time.process_time() - begin, 1)} | rounded

    def selected(self, names: Sequence[str] | None) -> list[Any]:
        """The cases whose names hold one of `names`; exits where one fits none."""
        for name in names or ():
            if not any(name in known for known in self.cases):
                sys.exit(f"--cases {name}: no case is so named; there are {list(self.cases)}")
        return [
            c
            for known, c in self.cases.items()
            if not names or any(name in known for name in names)
        ]

    def main(self, about: str | None, arguments: list[str] | None = None) -> int:
        """The command."""
        results = Path(__file__).parent / "results" / f"{self.name}.json"
        few = f"{self.quick[0]}, {self.quick[1]} seeds, fresh"
        parser = argparse.ArgumentParser(f"python -m benchmarks.{self.name}", description=about)
        parser.add_argument("--cases", nargs="+", metavar="PART", help="parts of the cases' names")
        parser.add_argument("--seeds", type=int, metavar="N", help="0 to N-1; else the case's")
        parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
        parser.add_argument("--results", type=Path, default=results, metavar="FILE")
        parser.add_argument("--show", action="store_true", help="run nothing, show what there is")
        parser.add_argument("--quick", action="store_true", help=few)
        parser.add_argument("--json", metavar="FILE")
        parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
        options = parser.parse_args(arguments)
        if options.one:
            name, who, seed = options.one
            return answer(who, lambda: self.made(self.cases[name], who, int(seed)))
        if options.quick:
            return self.few(options.json)
        if options.seeds is not None and options.seeds < 1:
            parser.error(f"--seeds {options.seeds}: at least 1")
        cases = self.selected(options.cases)
        pythons = {OURS: sys.executable} | named_pythons(options.peer, self.peers)
        todo = self.missing(read(options.results), cases, options.seeds, pythons)
        for done, (case, who, seed) in enumerate([] if options.show else todo):
            run = self.start(case, who, seed, pythons[who])
            print(f"{done + 1}/{len(todo)} {case.name}, {who}, seed {seed}: {run}", flush=True)
            self.add(options.results, case, who, seed, run)
        runs, whos = read(options.results), (OURS, *self.peers)
        counted = {c.name: {w: self.current(runs, c, w) for w in whos} for c in cases}
        bars = tables(self.name, cases, counted)
        status = verdict(self.name, bars, [], options.json, {"cases": counted})
        lacking = self.missing(runs, cases, options.seeds, whos)
        for who in sorted({who for _, who, _ in lacking}):
            lost = [f"{case.name} seed {seed}" for case, w, seed in lacking if w == who]
            print(f"absent: {who}, {len(lost)} runs ({lost[0]} …): --peer {who}=PYTHON makes them")
        return ABSENT if lacking else status

    def few(self, json_path: str | None) -> int:
        """A few seeds of one case, run now and kept nowhere."""
        name, seeds = self.quick
        case = self.cases[name]
        found = {str(s): self.start(case, OURS, s, sys.executable) for s in range(seeds)}
        tables(self.name, [case], {name: {OURS: found}})
        left_out = [f"{known}, {c.seeds} seeds" for known, c in self.cases.items()]
        values = {"cases": {name: {OURS: found}}}
        return verdict(self.name, [], left_out, json_path, values)
