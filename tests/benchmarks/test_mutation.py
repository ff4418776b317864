"""The mutation benchmark: which lines it changes, and what it makes of tests that see it or not."""

import functools
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import mutation, mutation_runs
from benchmarks.mutants import Mutant, key, mutants, sound
from benchmarks.mutation_choice import PACKAGES, Choice, Reach
from benchmarks.mutation_reach import MODULE, probed
from pearl_devices.primitives import code_cache
from pearl_devices.primitives.math import rng

ROOT = Path(__file__).parents[2]


def changes(source):
    text = source.encode()
    return {m.after for m in mutants("a.py", text) if sound(m, text)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = a < b <= c", {"x = a <= b <= c", "x = a < b < c"}),
        ("x = (a + b) % c", {"x = (a - b) % c", "x = (a + b) * c", "x = (a) % c"}),
        ("x = a * b", {"x = a + b", "x = a"}),
        ("x = a and not b", {"x = a or not b", "x = a and b"}),
        ("x = min(a, 2)", {"x = max(a, 2)", "x = min(a, 3)", "x = min(a, 1)"}),
        ("x = True, 0.5", {"x = False, 0.5", "x = True, 1.0"}),
        ("def f(a: int = 1): g(a)", {"def f(a: int = 2): g(a)", "def f(a: int = 0): g(a)",
                                     "def f(a: int = 1): pass"}),
        ("while a: x[a] -= b", {"while (not (a)): x[a] -= b", "while a: x[a] += b",
                                "while a: pass"}),
        ("if a: raise ValueError('a', 1 + 2)", {"if (not (a)): raise ValueError('a', 1 + 2)",
                                                "if a: pass"}),
    ],
)  # fmt: skip
def test_a_line_gets_every_small_change(line, expected):
    assert changes(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        '"""1 + 2 < 3"""',
        "__all__ = [a + b]",
        "x: Literal[1, 2] | None",
        "Name = int | None",
        "x = 'a' + b",
        "x = f'{1 + 2}'",
        "assert a < 1",
        "@dataclass(frozen=True)\nclass A: ...",
        "if TYPE_CHECKING: x = 1",
        "if __name__ == '__main__': main(1)",
    ],
)
def test_what_is_no_work_of_the_program_is_left_alone(line):
    assert changes(line) == set()


def test_a_mutant_knows_its_function_and_changes_one_line():
    source = b"A = (\n    1\n)\nclass B:\n    def c(self):\n        return 2  # two\n"
    assert mutants("a.py", b"a, b = 1, c")[0].where == "a b"
    first, *_, last = mutants("a.py", source)
    assert (first.where, first.line) == ("A", 2)
    assert (last.where, last.line) == ("B.c", 6)
    assert last.applied(source) == source.replace(b"return 2", b"return 1")


SUMS = """
LIMIT = 3


def total(n):
    s = i = 0
    while i < n:
        s += i
        i = i + 1
    return s


def largest(a, b):
    return max(a, b) * 1


def within(n):
    return n < LIMIT


def unused(n):
    return n < 3
"""
TESTS = """
from pearl.sums import largest, total, within


def test_total():
    assert total(4) == 6


def test_largest():
    assert largest(2, 2) == 2


def test_within():
    assert within(2) and not within(4)
"""


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    return write(
        root,
        {
            "pearl/__init__.py": "",
            "pearl/sums.py": SUMS,
            "tests/__init__.py": "",
            "tests/sums/__init__.py": "",
            "tests/sums/test_sums.py": TESTS,
            "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
            mutation.EQUIVALENT: json.dumps(
                [
                    {
                        "file": "pearl/sums.py",
                        "where": "largest",
                        "before": "return max(a, b) * 1",
                        "after": "return max(a, b)",
                        "why": "One times a number is the number.",
                    }
                ]
            ),
        },
    )


def run(tree, *more):
    """Exit status, output, outcomes (after → outcome) and CPU-seconds of the benchmark on a small
    tree."""
    code = """if True:
        import sys
        from benchmarks import mutation, mutation_runs
        mutation_runs.LIBRARIES, mutation.TEST_S = ("hypothesis",), 2.0
        mutation_runs.Tree.digest = lambda tree: "no kernels"
        sys.exit(mutation.main(sys.argv[1:]))
    """
    results = tree.parent / "results.json"
    where = ["--root", str(tree), "--resume", str(results), *more]
    done = subprocess.run(
        [sys.executable, "-c", code, *where], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    kept = json.loads(results.read_text()) if results.exists() else {"mutants": []}
    return done.returncode, done.stdout + done.stderr, {m["after"]: m for m in kept["mutants"]}


def test_mutants_are_killed_survive_or_hang_and_the_tree_stays_as_it_is(tree):
    before = {f: f.read_bytes() for f in tree.rglob("*") if f.is_file() and ".git" not in f.parts}
    status, said, found = run(tree, "--count", "100", "--json", str(tree.parent / "all.json"))
    ended = {after: m["outcome"] for after, m in found.items()}
    assert {
        "s -= i": "killed",
        "return min(a, b) * 1": "survived",  # tested with equal numbers alone
        "i = i": "out of time",
        "LIMIT = 2": "killed",  # by way of the function that mentions it
        "LIMIT = 4": "survived",
        "return n < 4": "survived",
    }.items() <= ended.items()
    survivor = found["return n < 4"]  # no test reaches it, so all are tried
    assert (survivor["test"], survivor["tests"], survivor["of"]) == ("", 3, 3)
    assert found["LIMIT = 4"]["of"] == 1  # the test of the function that mentions it
    assert found["s -= i"]["test"] == "tests/sums/test_sums.py::test_total"
    assert found["i = i"]["test"] == "tests/sums/test_sums.py::test_total"
    whole = json.loads((tree.parent / "all.json").read_text())
    labels = {m["after"]: m["outcome"] for m in whole["mutants"]}
    assert labels["return max(a, b)"] == "equivalent"
    assert status == 1
    assert "pearl/sums.py:14 function: survived" in said
    killed = sum(o == "killed" for o in labels.values())
    decided = killed + sum(o == "survived" for o in labels.values())
    assert f"mutants killed of those decided | {killed / decided:.1%} (" in said
    after = {f: f.read_bytes() for f in tree.rglob("*") if f.is_file() and ".git" not in f.parts}
    assert after == before

    # What is decided is not tried again; what is left alive may be, on the tests of now.
    assert run(tree, "--count", "100")[2] == found
    tests = tree / "tests/sums/test_sums.py"
    tests.write_text(TESTS.replace("largest(2, 2) == 2", "largest(2, 3) == 3"))
    status, said, _ = run(tree)
    assert status == 1
    assert "name another file" in said
    results = (tree.parent / "results.json").rename(tree.parent / "before.json")
    again = run(tree, "--again", str(results), "--module", "sums")[2]
    assert "s -= i" not in again
    assert again["return min(a, b) * 1"]["outcome"] == "killed"


def test_a_test_that_fails_without_a_mutant_kills_none(tree):
    (tree / mutation.EQUIVALENT).write_text("[]")
    (tree / "pearl/sums.py").write_text(
        "LIMIT = 3\ndef total(n): return n + 2\ndef within(n): return n < LIMIT\n"
    )
    tests = tree / "tests/sums/test_sums.py"
    tests.write_text(
        "from pearl.sums import total, within\n"
        "def test_total(): assert total(4) == 7\n"
        "def test_within(): assert within(2) and not within(4)\n"
    )
    status, _, found = run(tree, "--count", "100")
    assert status == 1
    minus = found["def total(n): return n - 2"]
    assert (minus["outcome"], minus["tests"], minus["of"]) == ("survived", 0, 1)
    assert found["LIMIT = 2"]["test"] == "tests/sums/test_sums.py::test_within"
    kept = json.loads((tree.parent / "results.json").read_text())
    assert kept["passes"]["tests/sums/test_sums.py::test_total True"] is False


WAITS = """
import subprocess, sys, time


def test_that_sleeps():
    time.sleep(2.0)


def test_that_computes():
    subprocess.run([sys.executable, "-c", "while True: pass"])
"""


def test_the_limits_are_of_cpu_seconds_of_all_processes_and_the_clocks_is_wide(tree):
    """1.5 CPU-seconds are more than a fork takes beside the sleep, however busy the machine."""
    file = "tests/sums/test_waits.py"
    (tree / file).write_text(WAITS)
    code = f"""if True:
        from pathlib import Path
        from benchmarks import mutation_runs
        mutation_runs.adopt()
        copy = mutation_runs.Tree.copied(Path({str(tree)!r}), Path({str(tree.parent / "copy")!r}))
        for test, patience, test_s, limit_s in (
            ("sleeps", 20.0, 1.5, 99.0),
            ("sleeps", 0.5, 1.5, 99.0),
            ("computes", 1e9, 1.5, 99.0),
            ("computes", 1e9, 99.0, 1.5),
        ):
            mutation_runs.PATIENCE = patience
            ran = copy.run([f"{file}::test_that_{{test}}"], limit_s, test_s)
            left = mutation_runs.processes.children("self")
            print(test, ran.ended, 1.5 <= ran.cpu_s < 4.5, left)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "sleeps passed False []",
        "sleeps stuck False []",
        "computes stuck True []",
        "computes spent True []",
    ]


def test_modules_are_drawn_by_their_lines_and_a_seed_draws_the_same(monkeypatch):
    known = functools.cache(mutants)
    monkeypatch.setattr(mutation, "mutants", lambda *source: list(known(*source)))
    first, again = (mutation.drawn(ROOT, 3, 40, "re") for _ in range(2))
    assert first == again
    assert len(set(first)) == 40
    assert {m.file.split("/")[0] for m in first} == set(PACKAGES)
    assert mutation.drawn(ROOT, 4, 40, "re") != first
    assert {m.file for m in mutation.drawn(ROOT, 3, 5, "pearl/graph/period.py")} == {
        "pearl/graph/period.py"
    }
    assert not mutation.drawn(ROOT, 3, 5, "pearl/testing/")


def test_what_is_called_equivalent_is_in_the_tree():
    for entry in json.loads((ROOT / mutation.EQUIVALENT).read_text()):
        source = (ROOT / entry["file"]).read_bytes()
        there = {key(m) for m in mutants(entry["file"], source)}
        assert key(entry) in there, entry
        assert entry["why"].endswith(".")


@pytest.mark.parametrize(
    ("ended", "passed", "outcome"),
    [
        ("passed", ["far", "near"], "survived"),
        ("spent", ["near"], "survived"),
        ("spent", ["far"], "undecided"),
    ],
)
def test_a_mutant_has_survived_when_every_test_that_reaches_it_has_passed(
    tmp_path, ended, passed, outcome
):
    mutant = Mutant("pearl/sums.py", 1, "LIMIT", "", "LIMIT = 3", "LIMIT = 4")
    write(tmp_path, {"pearl/sums.py": "LIMIT = 3\n"})
    tree = SimpleNamespace(
        root=tmp_path,
        holding=lambda texts, same_code: nullcontext(),
        run=lambda *_, **__: mutation_runs.Ran(ended, passed=dict.fromkeys(passed, True)),
    )
    choice = SimpleNamespace(
        batches=lambda *_: [["near", "far"]], is_compiled=lambda _: False, tests={}
    )
    reach = Reach({"near": 0.01}, {key(mutant): {"near"}})
    assert mutation.Trial(tree, choice, reach, 60.0).outcome(mutant)["outcome"] == outcome


PROBED = """
LIMIT = 3


def fit(n):
    \"\"\"Of n.\"\"\"
    if n > LIMIT:
        return 1
    elif small := n < 1:
        for i in range(2):
            n += i
    while n > 2:
        n -= 1
    match n + 1:
        case 2: return small
    with open(
        "/dev/null"
    ) as file:
        return [
            file.name, 4 * n,
        ]


def same(n): return n


class Box:
    SIZE = 5


def boxed():
    return Box()
"""


def test_a_probe_tells_that_its_line_was_reached(tmp_path, monkeypatch):
    file = "pearl/box.py"
    choice = Choice(write(tmp_path, {file: PROBED}), {})
    lines = [
        ("fit", "if n > LIMIT"), ("fit", "return 1"), ("fit", "elif"), ("fit", "n += i"),
        ("fit", "while"), ("fit", "n -= 1"), ("fit", "match"), ("fit", "return small"),
        ("fit", '"/dev/null"'), ("fit", "4 * n"), ("LIMIT", "LIMIT = 3"), ("Box", "SIZE"),
    ]  # fmt: skip
    at = [next(i for i, line in enumerate(PROBED.split("\n")) if what in line) for _, what in lines]
    mutants = [Mutant(file, i + 1, w, "", str(i), "") for (w, _), i in zip(lines, at, strict=True)]
    hits = []
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(hit=hits.append))
    (text,) = probed(choice, mutants).values()
    assert len(text.splitlines()) == len(PROBED.splitlines())
    names = {}
    exec(compile(text, file, "exec"), names)
    assert hits == []

    def reached(n):
        hits.clear()
        names["fit"](n)
        return {lines[i][1] for i in hits}

    begin = {"LIMIT = 3", "if n > LIMIT"}
    assert reached(4) == {*begin, "return 1"}
    rest = {*begin, "elif", "while", "match"}
    assert reached(0) == {*rest, "n += i", "return small"}
    assert reached(3) == {*rest, "n -= 1", '"/dev/null"', "4 * n"}
    hits.clear()
    names["boxed"]()
    assert hits == [11]


NEAR = {
    "pearl/room/low.py": "def deep(): ...\ndef other(): ...\n",
    "tests/room/test_low.py": "from pearl.room.low import deep\ndef test_it(n): deep()\n",
    "tests/room/test_room.py": "def test_it(): ...\n",
    "tests/other/test_far.py": "from pearl.room import low\ndef test_it(): low.other()\n",
    "tests/other/test_not.py": "def test_it(): ...\n",
}


def write(root, texts):
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def test_tests_that_reach_a_mutant_come_first_the_near_and_cheap_ones_before_the_others(tmp_path):
    files = "room/test_low", "room/test_room", "other/test_far", "other/test_not"
    low, here, far, no = (f"tests/{file}.py::test_it" for file in files)
    costs_s = {f"{low}[1]": 0.05, f"{low}[2]": 0.01, here: 0.01, far: 0.01, no: 0.01, "dear": 9.0}
    tests = {test: [(test.split("::")[0], "test_it")] for test in costs_s}
    choice = Choice(write(tmp_path, NEAR), tests, costs_s)
    mutant = Mutant("pearl/room/low.py", 1, "deep", "", "", "")
    nothing = [[f"{low}[1]", f"{low}[2]", here, far]]
    assert choice.batches(mutant, Reach()) == nothing
    reach = Reach(costs_s, {key(mutant): {here, far, f"{low}[2]"}})
    assert choice.batches(mutant, reach) == [[f"{low}[2]", here, far]]
    reach.cpu_s = costs_s | {f"{low}[2]": 3.0}
    assert choice.batches(mutant, reach) == [[here, far, f"{low}[2]"]]
    reach.cpu_s = costs_s | {here: 3.0}
    assert choice.batches(mutant, reach) == [[f"{low}[2]", far, here]]
    reach.cpu_s = {far: 3.5, f"{low}[2]": 0.01}  # of the others nothing is known
    assert choice.batches(mutant, reach) == [[f"{low}[1]", f"{low}[2]", here, far]]


KERNELS = """
fast = compiled(nogil=True)
ONE = 1
TWO = ONE + 1


def of(width):
    @fast
    def within(x):
        return x * width
    return within


@fast
def step(x):
    return more(x) + TWO


def plain(x):
    return x + 1


def bind(x):
    return step(plain(x))


more = fast(plain)
"""


def test_a_mutant_changes_machine_code_where_compiled_functions_take_something_of_it(tmp_path):
    choice = Choice(write(tmp_path, {"devices/pearl_devices/kernels.py": KERNELS}), {})
    places = ["ONE", "TWO", "of", "of.within", "step", "plain", "bind"]
    changing = {w for w in places if choice.is_compiled(("devices/pearl_devices/kernels.py", w))}
    assert changing == {"ONE", "TWO", "of", "of.within", "step", "plain"}


def test_a_mutant_of_no_kernel_finds_the_machine_code_of_before(tmp_path):
    tree = mutation_runs.Tree.copied(ROOT, tmp_path)
    kernels = tree.home / "cache/pearl-kernels"
    (kernels / tree.machine_code).mkdir(parents=True, exist_ok=True)
    before = set(kernels.iterdir())
    file = "devices/pearl_devices/kernels/rollouts.py"
    source = (ROOT / file).read_bytes()
    mutant = next(m for m in mutants(file, source) if sound(m, source))
    with tree.holding({file: mutant.applied(source)}, same_code=True):
        (new,) = set(kernels.iterdir()) - before
        assert new.name == tree.digest() != tree.machine_code
        assert new.resolve() == kernels / tree.machine_code
    assert set(kernels.iterdir()) == before
    assert tree.digest() == tree.machine_code == code_cache.sources().digest


def test_kernels_are_python_functions_where_numba_is_told_so_but_for_modules_with_intrinsics():
    code = """if True:
        import numpy as np
        from pearl_devices.primitives.math import rng
        from pearl_devices.primitives.replay import sum_tree
        tree = np.zeros(9, np.float32)
        tree[1:] = 1.0
        kinds = [type(f).__name__ for f in (rng.bits, sum_tree.sum_children)]
        print(*kinds, int(rng.bits(np.uint64(3), 5)), sum_tree.sum_children(tree, 1, 8))
    """
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    bits = int(rng.bits(np.uint64(3), 5))
    assert said.stdout.split() == ["function", "Whole", str(bits), "8.0"]


def test_no_mutant_is_drawn_of_a_module_whose_extra_is_absent(monkeypatch):
    file = "pearl/graph/period.py"
    monkeypatch.setattr(mutation, "EXTRAS", {"no_such_package": file})
    assert mutation.drawn(ROOT, 3, 5, file) == []
    monkeypatch.setattr(mutation, "EXTRAS", {"numpy": file})
    assert len(mutation.drawn(ROOT, 3, 5, file)) == 5
