"""HiGHS in a process of its own: what it leaves alone, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks import processes
from pearl.solvers.model import highs, linear, solver_process
from tests.needs import needs_linux
from tests.processes import HANG_S, is_open, until, until_gone
from tests.profiler import spent_cpu_s

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "pearl", ROOT / "devices", ROOT / "estimators"]
ENVIRONMENT = os.environ | {"PYTHONPATH": ":".join([str(ROOT), *filter(None, sys.path)])}
"""Of a process that imports what this one does."""

LONG_S = 300.0
"""A wait for what comes in a moment, on a machine however busy."""


def small():
    """x + y ≥ 1.5 in whole numbers at least cost 2 x + 3 y: x = 2."""
    form = linear.Linear()
    x, y = (form.variable(10.0, integer=True) for _ in range(2))
    form.add([(x, 1.0), (y, 0.5), (y, 0.5)], 1.5, float("inf"))
    form.add([(x, 1), (y, 1)], 0, 100)
    return form, [(x, 2.0), (y, 3.0)]


def hard():
    """Market split (Cornuéjols and Dawande 1998), 6 × 50: hours of branching."""
    r = np.random.default_rng(1)
    form = linear.Linear()
    xs = [form.variable(1.0, integer=True) for _ in range(50)]
    for _ in range(6):
        row = r.integers(0, 100, 50)
        form.add(list(zip(xs, row.astype(float), strict=True)), row.sum() // 2, row.sum() // 2)
    return form, [(x, float(c)) for x, c in zip(xs, r.uniform(1, 2, 50), strict=True)]


def children():
    """The processes that this one started, ended ones that were not waited for too."""
    return set(processes.children(os.getpid()))


@contextmanager
def running(code, *args, **more):
    """A process that runs this code. It is killed at the end, and where it hangs."""
    more |= {"stdout": subprocess.PIPE, "text": True, "env": ENVIRONMENT}
    with subprocess.Popen([sys.executable, "-c", code, *args], **more) as process:
        alarm = threading.Timer(HANG_S, process.kill)
        alarm.start()
        try:
            yield process
        finally:
            alarm.cancel()
            process.kill()


def output_of(code):
    """The lines that a process prints which runs this code."""
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    assert shown.stderr == ""
    return shown.stdout.splitlines()


@pytest.fixture(autouse=True)
def none_before():
    solver_process.end()
    yield
    solver_process.end()


def test_no_file_descriptor_of_a_process_is_swapped():
    programs = (
        "fork_server.py",
        "highs.py",
        "application.py",
        "calibrate_host.py",
    )  # own processes
    for package in PACKAGES:
        for file in package.rglob("*.py"):
            if file.name not in programs:
                assert not re.search(r"\b(dup2|redirect_stdout)\b", file.read_text()), file


THREADS = """
import sys, threading
from pearl import solve
from pearl.testing.graphs import random_problem

def work(seed):
    solve(*random_problem(seed, most_tasks=7, most_devices=2), time_limit_s=300)

# on 6012 and 6013 HiGHS 1.12 prints by itself
threads = [threading.Thread(target=work, args=(seed,)) for seed in (6012, 6013, 3, 4, 5, 6)]
for t in threads:
    t.start()
count = 0
while any(t.is_alive() for t in threads):
    print(count, flush=True)
    count += 1
    threads[0].join(0.001)
for t in threads:
    t.join()
print("end", count, flush=True)
"""


def test_threads_that_solve_at_once_leave_standard_output_alone():
    *lines, last = output_of(THREADS)
    assert len(lines) > 10
    assert lines == [str(k) for k in range(len(lines))]
    assert last == f"end {len(lines)}"


def test_a_program_keeps_its_whole_numbers_its_bounds_and_terms_that_come_twice():
    form, cost = small()
    bound, x, finished = form.minimise(cost, float("inf"), LONG_S)
    assert (bound, list(x), finished) == (4.0, [2.0, 0.0], True)
    assert form.minimise(cost, 3.9, LONG_S) == (float("inf"), None, True)
    assert form.minimise([cost[0]], -1.0, LONG_S) == (float("inf"), None, True)
    assert form.relax(cost, LONG_S) == pytest.approx(3.0, abs=1e-6)
    assert form.relax(cost, LONG_S, "ipm") == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize("seconds", [1e9, float("inf")])
def test_a_solve_may_have_all_the_time_there_is(seconds):
    form, cost = small()
    assert form.relax(cost, seconds) == pytest.approx(3.0, abs=1e-6)
    assert form.minimise(cost, float("inf"), seconds)[0] == 4.0


def test_a_long_wait_is_waited_for_in_parts(monkeypatch, tmp_path):
    monkeypatch.setattr(solver_process, "LONG_S", 0.05)
    script = tmp_path / "slow.py"
    script.write_text(
        "import sys, time\nfrom pearl.solvers.model.highs import write_message\n"
        "time.sleep(0.5)\nwrite_message(sys.stdout.buffer, b'late')\n"
    )
    assert (
        solver_process.solve_in_process(str(script), b"anything", time.monotonic() + LONG_S)
        == b"late"
    )


def test_one_process_serves_many_solves_and_ends_when_told():
    form, cost = small()
    before = children()
    form.minimise(cost, float("inf"), LONG_S)
    mine = children() - before
    for _ in range(3):
        form.relax(cost, LONG_S)
        assert children() - before == mine
    assert len(mine) == 1
    solver_process.end()
    assert not children() - before
    assert form.relax(cost, LONG_S) > 0


def test_as_many_processes_wait_as_are_said_and_no_more():
    form, cost = small()
    before = children()
    threads = [threading.Thread(target=form.relax, args=(cost, LONG_S)) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(children() - before) <= solver_process.SPARE


def test_a_solve_that_does_not_heed_its_limit_is_ended(monkeypatch, tmp_path):
    script = tmp_path / "deaf.py"
    script.write_text("import time\ntime.sleep(600)\n")
    before, begin = children(), time.monotonic()
    assert solver_process.solve_in_process(str(script), b"anything", begin + 0.2) is None
    assert time.monotonic() - begin >= 0.2 + solver_process.GRACE_S
    assert not children() - before


def test_a_process_that_ends_amid_a_solve_is_an_error_and_the_next_solve_has_a_new_one(tmp_path):
    script = tmp_path / "brief.py"
    script.write_text("import sys\nsys.exit(7)\n")
    with pytest.raises(RuntimeError, match=r"the process of brief.py ended .*status 7"):
        solver_process.solve_in_process(str(script), b"anything", time.monotonic() + LONG_S)
    form, cost = small()
    before = children()
    form.relax(cost, LONG_S)
    (process,) = children() - before
    os.kill(process, signal.SIGKILL)  # while it waits
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)  # all its threads are gone
    assert form.relax(cost, LONG_S) > 0
    assert process not in children()


@pytest.mark.parametrize("moment", ["before it is asked", "while it solves"])
def test_a_process_that_waited_and_is_killed_as_it_is_taken_makes_room_for_a_new_one(
    moment, monkeypatch
):
    form, cost = small()
    before = children()
    form.relax(cost, LONG_S)
    (waited,) = children() - before
    asked, tried = solver_process._request, []

    def killing(process, message, until):
        tried.append(process.child.pid)
        if process.child.pid == waited:
            number = signal.SIGKILL if moment == "before it is asked" else signal.SIGSTOP
            os.kill(waited, number)  # after it was seen alive
            if number == signal.SIGKILL:
                os.waitid(os.P_PID, waited, os.WEXITED | os.WNOWAIT)
            else:
                threading.Timer(0.2, os.kill, (waited, signal.SIGKILL)).start()
        return asked(process, message, until)

    monkeypatch.setattr(solver_process, "_request", killing)
    assert form.relax(cost, LONG_S) == pytest.approx(3.0, abs=1e-6)
    assert (tried[0], len(tried)) == (waited, 2)
    assert children() - before == {tried[1]}


def test_the_time_limit_of_a_search_holds():
    """By the CPU-seconds of the process that solves, which are at most those of the clock."""
    form, cost = hard()
    form.relax(cost, LONG_S)  # the process is there and has imported all
    begin = spent_cpu_s()
    _, _, finished = form.minimise(cost, float("inf"), 1.0)
    assert not finished
    assert spent_cpu_s() - begin < 1.0 + solver_process.GRACE_S + 1.0


STUCK = """
import sys, time
from tests.solvers.test_solver_process import children, hard
from pearl.solvers.model import solver_process

before = children()
form, cost = hard()
form.relax(cost, 3600.0)
print(*(children() - before), flush=True)
try:
    form.minimise(cost, float("inf"), 3600.0)
except KeyboardInterrupt:
    print("heard", len(children() - before), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_amid_a_solve_is_heard_and_leaves_no_process(number):
    with running(STUCK, stderr=subprocess.PIPE, process_group=0) as process:
        (solver,) = map(int, process.stdout.readline().split())
        begin = processes.cpu_s([solver])
        until(lambda: processes.cpu_s([solver]) > begin + 0.2, "a solve")
        os.killpg(process.pid, number)  # as a terminal does
        if number == signal.SIGINT:
            assert process.stdout.readline() == "heard 0\n"
        assert process.wait() == (0 if number == signal.SIGINT else -number)
        until_gone([solver])
        assert process.stderr.read() == ""


@needs_linux("forks")
def test_a_fork_has_processes_of_its_own():
    form, cost = small()
    form.relax(cost, LONG_S)
    before = children()
    (waiting,) = solver_process._spare
    pipes = [waiting.child.stdin.fileno(), waiting.child.stdout.fileno()]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            open_ones = [p for p in pipes if is_open(p)]
            same = form.relax(cost, LONG_S) == pytest.approx(3.0, abs=1e-6)
            status = 0 if same and not open_ones and len(children()) == 1 else 2
        finally:
            solver_process.end()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert form.relax(cost, LONG_S) > 0
    assert children() == before


def test_the_solvers_are_there_without_scipy_and_a_plan_without_its_optimisers():
    code = (
        "import sys, pearl.solvers\nprint('scipy' in sys.modules)\n"
        "from pearl import solve\nfrom pearl.testing.graphs import random_problem\n"
        "solve(*random_problem(3, most_tasks=4, most_devices=2), certify=False)\n"
        "print({'scipy.optimize', 'highspy'} & set(sys.modules))"
    )
    assert output_of(code) == ["False", "set()"]


def test_what_is_said_comes_back_as_it_was():
    r = np.random.default_rng(0)
    program = highs.LinearProgram(
        *(r.uniform(size=n) for n in (3, 3, 3, 2, 2, 4)),
        *(r.integers(0, 9, n).astype(np.int32) for n in (3, 3, 4)),
        until=2.5,
        gap=1e-9,
        method="ipm",
    )
    again = highs.LinearProgram.from_bytes(program.to_bytes())
    for name, value in vars(program).items():
        assert np.array_equal(getattr(again, name), value), name
    for x in (None, r.uniform(size=3)):
        back = highs.LpSolution.from_bytes(highs.LpSolution("stopped", 1.0, -np.inf, x).to_bytes())
        assert (back.status, back.value, back.bound) == ("stopped", 1.0, -np.inf)
        assert (back.x is None) == (x is None)
        assert x is None or np.array_equal(back.x, x)
