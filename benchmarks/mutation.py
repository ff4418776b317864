"""How many wrong lines the tests see: `python -m benchmarks.mutation [--seed 0] [--count 250]`.

Draws modules of the three packages by their lines and a single-line mutant of each
(`benchmarks.mutants`). In a copy of the tree it runs the tests that reach the mutated lines, but
for those marked `slow`, until one fails or they and their processes have taken 60 CPU-seconds
(`--limit-s`). `mutation_reach` records which tests reach which mutants: the tests of at most 0.1
CPU-seconds run once with a probe at each mutant. Dear tests of the mutant's room follow. Near and
cheap tests run first (`mutation_choice`). The costs are those of `--profile` and
`tests/costs.json`.

Machine code of a mutant of a kernel would have to be compiled for every kernel that calls the
mutated one. Mutants of compiled functions and of what these mention therefore meet the tests with
NUMBA_DISABLE_JIT=1, where kernels are Python functions, but for modules with intrinsics. The tests
that do not pass so without a mutant, or not in time, follow with kernels compiled. Mutants of other
lines in files that machine code may come from find the machine code of before.

A test that fails, or takes 10 CPU-seconds, is run again without the mutant in the same way. Where
it does not pass then, it says nothing about the mutant: it is left out, and the others go on.

A mutant is killed (a test fails), survived (every test of the record that reaches it has passed,
and of the others none has failed), undecided (the CPU-seconds were spent before), equivalent (it
survived, and a sentence in `mutation_equivalent.json` says why no test can fail), or out of time
(it makes one test take 10 CPU-seconds). The score is the share killed of killed and survived, with
its 95 % interval (Wilson 1927). The table also has the share where every undecided mutant counts
as survived.

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
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from benchmarks.bars import Bar, at_least, finish
from benchmarks.mutants import Mutant, key, mutants, sound
from benchmarks.mutation_choice import PACKAGES, Choice, Reach, file_of, module_name, sources
from benchmarks.mutation_reach import record
from benchmarks.mutation_runs import Tree, adopt, listed, warm
from pearl.files import write_atomically
from pearl_devices.primitives import code_cache

ROOT = Path(__file__).parents[1]
EQUIVALENT = "benchmarks/mutation_equivalent.json"
ASKED, DECIDED = 0.9, 200
TEST_S, COMPILING_S = 10.0, 40.0
"""CPU-seconds that one test may take: twice what makes a test `slow`; and where it compiles."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
OUTCOMES = ("killed", "survived", "undecided", "equivalent", "out of time")

Outcome = dict[str, Any]
"""The fields of a `Mutant`; outcome: one of `OUTCOMES`; test: the one that failed or was stuck;
tests: number of tests that passed; of: number of those chosen; compiled: with compiled kernels;
cpu_s: CPU-seconds taken."""


def digest(root: Path) -> str:
    """Of all Python sources."""
    names = [name for name in listed(root) if name.endswith(".py")]
    texts = [sha256((root / name).read_bytes()).hexdigest() for name in names]
    return sha256("\n".join(names + texts).encode()).hexdigest()[:16]


@dataclass
class Trial:
    """Mutants against the tests of a tree. passes: `test compiled` → whether the test passes
    without a mutant, of those that have failed with one."""

    tree: Tree
    choice: Choice
    reach: Reach
    limit_s: float
    passes: dict[str, bool] = field(default_factory=dict)
    cpu_s: float = 0.0

    def outcome(self, mutant: Mutant) -> Outcome:
        """Run the tests of one mutant."""
        batches, done, spent_s = self.choice.batches(mutant, self.reach), set[str](), 0.0
        ended = stopped = again = ""
        name = f"{module_name(mutant.file).replace('.', '/')}.py"
        of_kernels = name in code_cache.sources().names.values()
        kernel = of_kernels and self.choice.is_compiled((mutant.file, mutant.where))
        texts = {mutant.file: mutant.applied((self.tree.root / mutant.file).read_bytes())}
        for batch, compiled in product(batches, (False, True) if kernel else (True,)):
            slow = kernel and compiled
            left = [t for t in batch if not slow or self.passes.get(f"{t} False") is False]
            test_s = COMPILING_S if slow else TEST_S
            while not ended and (
                left := [t for t in left if self.passes.get(f"{t} {compiled}", True)]
            ):
                with self.tree.holding(texts, same_code=of_kernels and not kernel):
                    ran = self.tree.run(left, self.limit_s - spent_s, test_s, compiled=compiled)
                done |= {t for t, passed in ran.passed.items() if passed}
                spent_s += ran.cpu_s
                if ran.ended == "passed":
                    break
                if ran.ended == "spent":
                    ended = "spent"
                    break
                test = next((t for t in left if ran.test in (t, file_of(t))), left[0])
                left = left[left.index(test) :]
                if self.sound(left, test_s, compiled=compiled):
                    if ran.ended == "failed" or again == test:
                        ended, stopped = "killed" if ran.ended == "failed" else "out of time", test
                    again = test  # before it was stuck, it may have compiled something
        self.cpu_s += spent_s
        chosen = {test for batch in batches for test in batch}
        if ended in ("", "spent"):
            passing = {test for test in chosen if self.passes.get(f"{test} True", True)}
            reaching = passing & self.reach.tests.get(key(mutant), set()) or passing
            ended = "survived" if not ended or reaching <= done else "undecided"
        return asdict(mutant) | {
            "outcome": ended, "test": stopped, "tests": len(done), "of": len(chosen),
            "compiled": not kernel, "cpu_s": round(spent_s, 2),
        }  # fmt: skip

    def sound(self, tests: list[str], test_s: float, *, compiled: bool) -> bool:
        """Whether the first test passes without a mutant. Without compiled kernels many do not, so
        that all are tried then."""
        key = f"{tests[0]} {compiled}"
        if key not in self.passes:
            tried = tests[:1] if compiled else tests
            ran = self.tree.run(tried, self.limit_s, test_s, first=False, compiled=compiled)
            self.cpu_s += ran.cpu_s
            self.passes[key] = False
            self.passes |= {f"{test} {compiled}": passed for test, passed in ran.passed.items()}
            if ran.ended == "stuck":
                self.passes[f"{ran.test} {compiled}"] = False
        return self.passes[key]


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
    how = "" if outcome["compiled"] else " uncompiled"
    tests = f"{outcome['tests']} of {outcome['of']}{how} tests passed"
    ended = f"{outcome['outcome']}{by}, {tests}, {outcome['cpu_s']} CPU-s"
    head = f"{outcome['file']}:{outcome['line']} {outcome['kind']}: {ended}"
    return f"{head}\n  - {outcome['before']}\n  + {outcome['after']}"


def shown(outcomes: list[Outcome], json_path: str | None, values: dict[str, Any]) -> int:
    """Prints what was not killed, the table and the bars; the exit status."""
    for outcome in outcomes:
        if outcome["outcome"] != "killed":
            print(text(outcome))
    rows, share, least = [], "–", "–"
    for package in (*PACKAGES, "all"):
        here = [o for o in outcomes if package in ("all", o["file"].split("/")[0])]
        ended = Counter(o["outcome"] for o in here)
        killed, decided = ended["killed"], ended["killed"] + ended["survived"]
        every = decided + ended["undecided"]
        if decided:
            interval = binomtest(killed, decided).proportion_ci(method="wilson")
            share = f"{killed / decided:.1%} ({interval.low:.1%} to {interval.high:.1%})"
            least = f"{killed / every:.1%}"
        shares = [share, least] if decided else ["–", "–"]
        rows.append([package, *(str(ended[name]) for name in OUTCOMES), *shares])
    met = killed >= ASKED * decided
    bars = [Bar("mutants killed of those decided", share, f"at least {ASKED:.0%}", met)]
    if len(outcomes) >= DECIDED:
        bars.append(at_least("mutants decided", decided, DECIDED, "{}"))
    columns = ["package", *OUTCOMES, "killed of decided", "and of undecided"]
    return finish("mutation", columns, rows, bars, [], json_path, values | {"mutants": outcomes})


def costs_s(root: Path, profile: Path | None) -> dict[str, float]:
    """Test → its CPU-seconds: those that `tests/costs.json` has, and of a profile."""
    kept = root / "tests/costs.json"
    found: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    tests = json.loads(profile.read_text())["tests"] if profile else {}
    return found | {test: costs["cpu_s"] for test, costs in tests.items()}


def tested(given: argparse.Namespace, work: Path) -> int:
    """Decides the mutants that are asked for, keeping each outcome at once; the exit status."""
    about = {
        "tree": digest(given.root), "seed": given.seed, "module": given.module,
        "limit_s": given.limit_s,
    }  # fmt: skip
    kept: dict[str, Any] = {"about": about, "passes": {}, "cpu_s": 0.0, "mutants": []}
    if given.resume and given.resume.exists():
        kept = json.loads(given.resume.read_text())
        if kept["about"] != about:
            sys.exit(f"{given.resume} is of {kept['about']}, this is {about}: name another file")
    if given.again:
        chosen = alive(given.root, given.again)
    else:
        chosen = drawn(given.root, given.seed, given.count, given.module)
    done = {(*key(o), o["line"]) for o in kept["mutants"]}
    if left := [m for m in chosen if (*key(m), m.line) not in done]:
        tree = Tree.copied(given.root, work)
        choice = Choice(tree.root, tree.collected(), costs_s(given.root, given.profile))
        reach = Reach.read(given.reach) if given.reach and given.reach.exists() else Reach()
        if any(key(mutant) not in reach.tests for mutant in left):
            reach = record(tree, choice, chosen)
            if given.reach:
                reach.write(given.reach)
        trial = Trial(tree, choice, reach, given.limit_s, kept["passes"], kept["cpu_s"])
        for mutant in left:
            kept["mutants"].append(trial.outcome(mutant))
            kept["cpu_s"] = round(trial.cpu_s, 1)
            print(f"{len(kept['mutants']):4}  {text(kept['mutants'][-1])}", flush=True)
            if given.resume:
                write_atomically(given.resume, f"{json.dumps(kept, indent=1)}\n".encode())
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, cwd=given.root, capture_output=True, text=True, check=False)
    values = {"commit": commit.stdout.strip(), "about": about, "cpu_s": kept["cpu_s"]}
    return shown(labelled(kept["mutants"], given.root), given.json, values)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=250, help="mutants (default 250)")
    parser.add_argument("--limit-s", type=float, default=60.0, help="CPU-seconds for one mutant")
    parser.add_argument("--module", default="", help="only modules with this in their path")
    parser.add_argument("--resume", type=Path, help="keep outcomes in this file and go on from it")
    parser.add_argument("--profile", type=Path, help="costs of the tests (`pytest --profile FILE`)")
    parser.add_argument("--reach", type=Path, help="file that keeps which tests reach the mutants")
    parser.add_argument("--again", type=Path, help="those that this --resume file has not killed")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree (default: this one)")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args(arguments)
    os.environ |= ONE_THREAD
    adopt()
    warm()
    with tempfile.TemporaryDirectory(prefix="mutation") as folder:
        return tested(given, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
