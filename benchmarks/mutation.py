"""How many wrong lines the tests see: `python -m benchmarks.mutation [--seed 0] [--count 250]`.

Draws modules of the three packages by their lines and a single-line mutant of each
(`benchmarks.mutants`). In a copy of the tree it runs the tests that call the mutated function, but
for those marked `slow`, until one fails or they and their processes have taken 60 CPU-seconds:
first the files that name the module, among them the quickest. Which tests call which functions, and
how long each takes, is recorded first on the tree without a mutant, where every test must pass.

A mutant of a compiled kernel would cost a compilation of every kernel that calls the mutated one.
The tests of kernels are therefore recorded a second time with NUMBA_DISABLE_JIT=1, where kernels
are Python functions. A test that fails so, or takes 5 CPU-seconds more than twice its usual time,
needs compiled code. A mutant of a kernel meets the other tests first, uncompiled, and then those.

A mutant is killed (a test fails), survived (none does), equivalent (it survived, and a sentence in
`mutation_equivalent.json` says why no test can fail), or out of time. The score is the share killed
of killed and survived.

Why no maintained tool does this. mutmut 3.8 knows the tests that call a function and resumes, but
leaves out module constants and decorated functions, so every kernel, property and cached function:
of `primitives/math/rng.py` it mutates 1 function of 8. It tests a mutant through a wrapper that
numba cannot compile, and draws no sample. cosmic-ray 8.7 resumes and has a limit of time, but runs
one fixed command for every mutant in a fresh process. It does not choose tests, and changes
annotations, decorators and messages too: 518 mutants of the same file. coverage.py's contexts give
the calls of a shared fixture to one test, and lose those of a killed process.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, at_least, finish
from benchmarks.mutants import Mutant, mutants, sound
from benchmarks.mutation_choice import PACKAGES, Choice, needing, sources
from benchmarks.mutation_runs import How, Ran, Record, Tree, adopt, listed, trace_file, warm
from pearl.files import write_atomically
from pearl_devices.cpu_count import usable_cpu_count

ROOT = Path(__file__).parents[1]
EQUIVALENT = "benchmarks/mutation_equivalent.json"
ASKED, DECIDED = 0.9, 200
MOST_S = 60.0
"""CPU-seconds for all tests of a mutant and the processes that they start."""
SLOWER, ALLOWANCE_S = 2.0, 5.0
"""A test that takes more than so many times its usual time and so many CPU-seconds without compiled
kernels needs them."""
FILE_S = 1200.0
"""CPU-seconds for a test file without a mutant."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
OUTCOMES = ("killed", "survived", "equivalent", "out of time")

Outcome = dict[str, Any]
"""The fields of a `Mutant`; outcome: one of `OUTCOMES`; test: the one that failed or was running;
tests: how many were chosen, but for those; uncompiled: without compiled kernels; seconds: taken by
the clock; cpu_s: CPU-seconds taken."""


def digest(root: Path) -> str:
    """Of all Python sources."""
    names = [name for name in listed(root) if name.endswith(".py")]
    texts = [sha256((root / name).read_bytes()).hexdigest() for name in names]
    return sha256("\n".join(names + texts).encode()).hexdigest()[:16]


def recorded(pool: ProcessPoolExecutor, base: Tree, folder: Path) -> list[Record]:
    """Runs all tests without a mutant, traced: with compiled kernels, then without, where they may
    need some. Files that `folder` holds a record of are not run again. Ends the program if a test
    fails."""
    files = [f for f in listed(base.root) if f.startswith("tests/") and Path(f).match("test_*.py")]
    running = [pool.submit(record, base, file, folder) for file in files]
    found: list[Record] = [{}, {}]
    for future in as_completed(running):
        text, *both = future.result()
        if text:
            pool.shutdown(wait=False, cancel_futures=True)
            sys.exit(f"these tests fail without a mutant:\n{text}")
        for whole, part in zip(found, both, strict=True):
            whole |= part
    return found


def record(tree: Tree, file: str, folder: Path) -> tuple[str, Record, Record]:
    """The tests of one file that fail, and what is recorded with and without compiled kernels.
    Those that fail traced are tried without. Those that fail without compiled kernels, or take
    too long, need them."""
    kept = folder / f"{file.replace('/', '.')}.json"
    if kept.exists():
        return "", *json.loads(kept.read_text())
    ran, compiled = traced(tree, How(), file)
    if ran.ended != "passed":
        ran = tree.run([file], [], FILE_S, How())
        if ran.ended != "passed":
            return "\n".join(ran.failed or [file]) + f"\n{ran.text}", {}, {}
    interpreted: Record = {}
    if tests := needing(tree.root, compiled):
        limits_s = {test: SLOWER * compiled[test][0] + ALLOWANCE_S for test in tests}
        ran, interpreted = traced(tree, How(compiled=False, limits_s=limits_s), file, tests)
        lost = {*ran.failed, *([ran.running] if ran.ended == "out of time" else ())}
        interpreted |= {
            test: (math.inf, interpreted[test][1]) for test in lost & interpreted.keys()
        }
    seconds = sum(seconds for seconds, _ in compiled.values())
    few = f"{sum(s < math.inf for s, _ in interpreted.values()):4} of {len(tests):4} uncompiled"
    print(f"{seconds:7.1f} s  {few}  {file}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps([compiled, interpreted]))
    return "", compiled, interpreted


def traced(tree: Tree, how: How, file: str, tests: Sequence[str] = ()) -> tuple[Ran, Record]:
    hits = Path(tempfile.mkdtemp(dir=tree.home))
    ran, found = tree.run([file], tests, FILE_S, replace(how, hits=hits)), {}
    for test, seconds in ran.seconds.items():
        traces = [trace_file(hits, name) for name in (test, *ran.wide.get(test, []))]
        calls = {call for trace in traces if trace.exists() for call in read_trace(trace)}
        found[test] = round(seconds, 3), sorted(calls)
    shutil.rmtree(hits)
    return ran, found


def read_trace(trace: Path) -> Iterator[str]:
    """`file function`, functions named as in a `Mutant`."""
    for line in trace.read_text().splitlines():
        file, name = line.split("\t")
        where = name.replace(".<locals>", "").partition("<")[0].strip(".")
        if where and file.split("/")[0] in PACKAGES:
            yield f"{file} {where}"


_copies: dict[Path, Tree] = {}
"""Of each process of the pool: its own copy of the tree."""


def decided(
    base: Tree, work: Path, mutant: Mutant, groups: list[tuple[bool, list[str]]], how: How
) -> Outcome:
    """The outcome of one mutant against these tests of `Choice.tests`."""
    if work not in _copies:
        _copies[work] = Tree.copied(base.root, Path(tempfile.mkdtemp(prefix="copy", dir=work)))
    begin, spent_s, ended, test = time.monotonic(), 0.0, "survived", ""
    with _copies[work].holding(mutant):
        for compiled, tests in groups:
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            left_s = max(0.0, MOST_S - spent_s)
            ran = _copies[work].run(files, tests, left_s, replace(how, compiled=compiled))
            spent_s += ran.cpu_s
            if ran.ended != "passed":
                ended = "killed" if ran.ended == "failed" else ran.ended
                test = ran.failed[0] if ran.failed else ran.running
                break
    count = {compiled: len(tests) for compiled, tests in groups}
    return asdict(mutant) | {
        "outcome": ended, "test": test, "tests": count.get(True, 0),
        "uncompiled": count.get(False, 0), "seconds": round(time.monotonic() - begin, 2),
        "cpu_s": round(spent_s, 2),
    }  # fmt: skip


EXTRAS = {"envpool": "devices/pearl_devices/primitives/envs/envpool_envs.py"}
"""Package of an extra → the module of which no test can run without it."""

CONTRACTS = "pearl/testing/"


def drawn(root: Path, seed: int, count: int, module: str) -> list[Mutant]:
    """`count` different mutants: a module by its lines, then one of its mutants. None of a module
    whose extra is not installed, and none of the contracts that ship, which are tests."""
    dice = random.Random(seed)
    absent = [file for package, file in EXTRAS.items() if find_spec(package) is None]
    wanted = [f for f in sources(root) if module in f and not f.startswith((CONTRACTS, *absent))]
    texts = {f: (root / f).read_bytes() for f in wanted}
    left = {file: found for file, text in texts.items() if (found := mutants(file, text))}
    chosen: list[Mutant] = []
    while left and len(chosen) < count:
        files = list(left)
        file = dice.choices(files, [texts[f].count(b"\n") for f in files])[0]
        mutant = left[file].pop(dice.randrange(len(left[file])))
        if not left[file]:
            del left[file]
        if sound(mutant, texts[file]):
            chosen.append(mutant)
    return chosen


def alive(root: Path, results: Path) -> list[Mutant]:
    """The mutants that an earlier run did not see killed, where their lines are now."""
    found = []
    for kept in json.loads(results.read_text())["mutants"]:
        file = root / kept["file"]
        if kept["outcome"] != "killed" and file.exists():
            there = [m for m in mutants(kept["file"], file.read_bytes()) if key(m) == key(kept)]
            found += [m for m in there if m.line == kept["line"]] or there[:1]
    return found


def key(mutant: Mutant | Outcome) -> tuple[str, ...]:
    """What a mutant is known by wherever its line has moved."""
    fields = mutant if isinstance(mutant, dict) else asdict(mutant)
    return tuple(fields[name] for name in ("file", "where", "before", "after"))


def labelled(outcomes: list[Outcome], root: Path) -> list[Outcome]:
    """The outcomes, the survivors that EQUIVALENT argues about as `equivalent`."""
    argued = {key(entry) for entry in json.loads((root / EQUIVALENT).read_text())}
    found = sorted(outcomes, key=lambda o: (o["file"], o["line"], o["after"]))
    for i, outcome in enumerate(found):
        if key(outcome) in argued and outcome["outcome"] == "killed":
            print(f"{EQUIVALENT} is wrong about this one:\n{text(outcome)}")
        if key(outcome) in argued and outcome["outcome"] == "survived":
            found[i] = outcome | {"outcome": "equivalent"}
    return found


def text(outcome: Outcome) -> str:
    """Where a mutant is, how it ended, and its difference."""
    by = f" by {outcome['test']}" if outcome["test"] else ""
    tests = f"{outcome['uncompiled']} + {outcome['tests']} tests"
    ended = f"{outcome['outcome']}{by}, {tests}, {outcome['seconds']} s"
    head = f"{outcome['file']}:{outcome['line']} {outcome['kind']}: {ended}"
    return f"{head}\n  - {outcome['before']}\n  + {outcome['after']}"


def shown(outcomes: list[Outcome], json_path: str | None, values: dict[str, Any]) -> int:
    """Prints what was not killed, the table and the bars; the exit status."""
    for outcome in outcomes:
        if outcome["outcome"] != "killed":
            print(text(outcome))
    rows, share = [], "–"
    for package in (*PACKAGES, "all"):
        here = [o for o in outcomes if package in ("all", o["file"].split("/")[0])]
        ended = Counter(o["outcome"] for o in here)
        decided = ended["killed"] + ended["survived"]
        share = f"{ended['killed'] / decided:.1%}" if decided else "–"
        rows.append([package, *(str(ended[name]) for name in OUTCOMES), share])
    met = ended["killed"] >= ASKED * decided
    bars = [Bar("mutants killed of those decided", share, f"at least {ASKED:.0%}", met)]
    if len(outcomes) >= DECIDED:
        bars.append(at_least("mutants decided", decided, DECIDED, "{}"))
    columns = ["package", *OUTCOMES, "killed of decided"]
    return finish("mutation", columns, rows, bars, [], json_path, values | {"mutants": outcomes})


def tested(given: argparse.Namespace, work: Path) -> int:
    begin, tree = time.monotonic(), digest(given.root)
    about = {"tree": tree, "seed": given.seed, "module": given.module}
    outcomes: list[Outcome] = []
    if given.resume and given.resume.exists():
        kept = json.loads(given.resume.read_text())
        if kept["about"] != about:
            sys.exit(f"{given.resume} is of {kept['about']}, this is {about}: name another file")
        outcomes = kept["mutants"]
    if given.again:
        chosen = alive(given.root, given.again)
    else:
        chosen = drawn(given.root, given.seed, given.count, given.module)
    done = {(*key(o), o["line"]) for o in outcomes}
    base = Tree.copied(given.root, work / "base")
    with ProcessPoolExecutor(given.jobs, multiprocessing.get_context("fork"), adopt) as pool:
        choice = Choice(base.root, *recorded(pool, base, work / tree))
        kernels, running = base.kernels(), []
        for mutant in chosen:
            if (*key(mutant), mutant.line) not in done:
                how = How(first=True, kernels=kernels, stale=frozenset(choice.stale(mutant)))
                groups = choice.tests(mutant)
                running.append(pool.submit(decided, base, work, mutant, groups, how))
        for future in as_completed(running):
            outcomes.append(future.result())
            print(f"{len(outcomes):4}  {text(outcomes[-1])}", flush=True)
            if given.resume:
                whole = json.dumps({"about": about, "mutants": outcomes}, indent=1)
                write_atomically(given.resume, f"{whole}\n".encode())
    for copy in work.glob("copy*"):
        shutil.rmtree(copy)
    values = {"about": about, "seconds": round(time.monotonic() - begin)}
    return shown(labelled(outcomes, given.root), given.json, values)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=250, help="mutants (default 250)")
    parser.add_argument("--module", default="", help="only modules with this in their path")
    parser.add_argument("--resume", type=Path, help="keep outcomes in this file and go on from it")
    parser.add_argument("--again", type=Path, help="those that this --resume file has not killed")
    parser.add_argument("--jobs", type=int, default=usable_cpu_count(), help="mutants at a time")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree (default: this one)")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args(arguments)
    os.environ |= ONE_THREAD
    warm()
    with tempfile.TemporaryDirectory(prefix="mutation") as folder:
        return tested(given, given.resume.with_suffix(".work") if given.resume else Path(folder))


if __name__ == "__main__":
    sys.exit(main())
