"""Learning, checked by return: `python -m benchmarks.returns [--cases …] [--seeds N] [--peer …]`.

Adds what a results file lacks, one run in a process of its own after another, and writes the file
whole after each: it may be stopped at any time and goes on where it was. Then prints, for every
case, the interquartile mean of the last policy's greedy return over seeds with its 95 % interval
(Agarwal et al. 2021), beside libraries with the same settings and published figures.

A peer runs in the interpreter that `--peer sb3=…/bin/python` names; without one its missing runs
are named as absent. Runs of other settings than the case's are not counted and are made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.bars import ABSENT, machine, ran, verdict
from benchmarks.returns_cases import BY_NAME, Case, Shipped
from benchmarks.returns_peers import PEERS
from benchmarks.returns_table import tables

RESULTS = Path(__file__).parent / "results" / "returns.json"
OURS = "ours"
QUICK = ("shipped dqn_cartpole", 3)
"""With --quick: this case, so many seeds."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1") | {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
}
Results = dict[str, dict[str, dict[str, Any]]]
"""Case → who → {settings, version, seeds: {seed: {final, last_20, cpu_s, …}}}."""


def read(path: Path) -> Results:
    """The runs of a results file; none where there is no file. Exits where it is no such file."""
    if not path.exists():
        return {}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        runs: Results = held["cases"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{path} is no results file of this benchmark ({error}); give another --results")
    return runs


def write(path: Path, runs: Results) -> None:
    """The whole file, or not at all."""
    from pearl.files import write_atomically

    head = {"schema": 1, "benchmark": "returns", "machine": machine()}
    lines = []
    for case, by_who in sorted(runs.items()):
        rows = []
        for who, entry in sorted(by_who.items()):
            seeds = sorted(entry["seeds"].items(), key=lambda item: int(item[0]))
            listed = ",\n    ".join(f"{json.dumps(s)}: {json.dumps(r)}" for s, r in seeds)
            rest = {key: value for key, value in entry.items() if key != "seeds"}
            text = json.dumps(rest)[1:-1]
            rows.append(f'  {json.dumps(who)}: {{{text}, "seeds": {{\n    {listed}}}}}')
        lines.append(f" {json.dumps(case)}: {{\n" + ",\n".join(rows) + "}")
    text = json.dumps(head)[:-1] + ', "cases": {\n' + ",\n".join(lines) + "}}\n"
    write_atomically(path, text.encode())


def settings_of(case: Case | Shipped) -> str:
    """Digest of what decides a run; of a shipped configuration its file's bytes."""
    if isinstance(case, Case):
        return case.fingerprint()
    import hashlib
    from importlib.resources import files

    data = files("pearl_configs").joinpath(f"{case.config}.yaml").read_bytes()
    return hashlib.sha256(data).hexdigest()[:12]


def current(runs: Results, case: Case | Shipped, who: str) -> dict[str, Any]:
    """Seed → run, of the case's settings as they are now."""
    entry = runs.get(case.name, {}).get(who, {})
    seeds: dict[str, Any] = entry["seeds"] if entry.get("settings") == settings_of(case) else {}
    return seeds


def add(path: Path, case: Case | Shipped, who: str, seed: int, run: dict[str, Any]) -> None:
    """Put one run into the file, read anew, since another process may have added its own."""
    runs = read(path)
    seeds = dict(current(runs, case, who))
    version = run.pop("version")
    seeds[str(seed)] = run
    runs.setdefault(case.name, {})[who] = {
        "settings": settings_of(case),
        "version": version,
        "seeds": seeds,
    }
    write(path, runs)


def missing(
    runs: Results, cases: Iterable[Case | Shipped], seeds: int | None, whos: Iterable[str]
) -> list[tuple[Case | Shipped, str, int]]:
    """The runs that the file lacks, in the table's order: ours first, then each peer."""
    lacking = []
    for case in cases:
        peers = case.peers if isinstance(case, Case) else ()
        for who in whos:
            if who == OURS or who in peers:
                have = current(runs, case, who)
                wanted = range(case.seeds if seeds is None else seeds)
                lacking += [(case, who, s) for s in wanted if str(s) not in have]
    return lacking


def one(name: str, who: str, seed: int) -> dict[str, Any]:
    """One run, in the process it is alone in."""
    import time

    case = BY_NAME[name]
    begin = time.process_time()
    if who == OURS:
        from importlib.metadata import version

        import pearl

        spec = case.spec() if isinstance(case, Case) else case.config
        run = pearl.compile(spec, seed=seed).train()
        result = {
            "final": run.returns["eval_mean"],
            "last_20": run.returns["mean_last_20"],
            "version": version("pearl-toolkit"),
        }
    else:
        from benchmarks import returns_peers

        assert isinstance(case, Case)
        result = returns_peers.train(who, case, seed)
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in result.items()}
    return rounded | {"cpu_s": round(time.process_time() - begin, 1)}


def start(name: str, who: str, seed: int, python: str) -> dict[str, Any]:
    """`one` in a process of its own; exits with its last words if it fails."""
    command = [python, "-m", "benchmarks.returns", "--one", name, who, str(seed)]
    done = ran(f"{name}, {who}, seed {seed}", command, ONE_THREAD)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def interpreters(given: list[str]) -> dict[str, str]:
    """Who → interpreter; exits naming an unknown peer, an entry without `=`, or no such file."""
    found = {OURS: sys.executable}
    for entry in given:
        name, equals, python = entry.partition("=")
        if name not in PEERS or not equals:
            sys.exit(f"--peer {entry}: give NAME=PYTHON with a name of {', '.join(PEERS)}")
        if not Path(python).is_file():
            sys.exit(f"--peer {entry}: there is no file {python}")
        found[name] = python
    return found


def selected(names: list[str] | None) -> list[Case | Shipped]:
    """The cases whose names hold one of `names`; exits where one fits none."""
    if not names:
        return list(BY_NAME.values())
    for name in names:
        if not any(name in known for known in BY_NAME):
            sys.exit(f"--cases {name}: no case has that in its name; there are {list(BY_NAME)}")
    return [c for known, c in BY_NAME.items() if any(name in known for name in names)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", metavar="PART", help="parts of the cases' names")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="seeds 0 to N-1 (default: the case's)"
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--show", action="store_true", help="run nothing, show what there is")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK[0]}, {QUICK[1]} seeds, fresh")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        name, who, seed = options.one
        print(json.dumps(one(name, who, int(seed))))
        return 0
    if options.quick:
        return quick(options.json)
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least 1")
    cases, pythons = selected(options.cases), interpreters(options.peer)
    todo = missing(read(options.results), cases, options.seeds, pythons)
    for done, (case, who, seed) in enumerate([] if options.show else todo):
        run = start(case.name, who, seed, pythons[who])
        print(f"{done + 1}/{len(todo)} {case.name}, {who}, seed {seed}: {run}", flush=True)
        add(options.results, case, who, seed, run)
    runs = read(options.results)
    counted = {c.name: {w: current(runs, c, w) for w in (OURS, *PEERS)} for c in cases}
    bars = tables(cases, counted)
    status = verdict("returns", bars, [], options.json, {"cases": counted})
    lacking = missing(runs, cases, options.seeds, (OURS, *PEERS))
    for who in sorted({who for _, who, _ in lacking}):
        lost = [f"{case.name} seed {seed}" for case, w, seed in lacking if w == who]
        print(f"absent: {who}, {len(lost)} runs ({lost[0]} …): --peer {who}=PYTHON makes them")
    return ABSENT if lacking else status


def quick(json_path: str | None) -> int:
    """A few seeds of one case, run now and kept nowhere."""
    name, seeds = QUICK
    case = BY_NAME[name]
    found = {str(s): start(name, OURS, s, sys.executable) for s in range(seeds)}
    tables([case], {name: {OURS: found}})
    left_out = [f"{known}, {c.seeds} seeds" for known, c in BY_NAME.items()]
    return verdict("returns", [], left_out, json_path, {"cases": {name: {OURS: found}}})


if __name__ == "__main__":
    sys.exit(main())
