"""HiGHS in a thread: what it leaves alone, and how it ends."""

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
from highspy import _core
from highspy._core import _Highs

from benchmarks import processes
from pearl.solvers.model import highs, linear
from tests.processes import HANG_S, until
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


def test_no_file_descriptor_of_a_process_is_swapped():
    programs = (
        "fork_server.py",
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


def test_the_time_limit_of_a_search_holds():
    """By the CPU-seconds of this process, which are at most those of the clock."""
    form, cost = hard()
    form.relax(cost, LONG_S)  # all is imported
    begin = spent_cpu_s()
    _, _, finished = form.minimise(cost, float("inf"), 1.0)
    assert not finished
    assert spent_cpu_s() - begin < 1.0 + highs.GRACE_S + 1.0


def test_a_solve_that_does_not_heed_its_limit_is_stopped(monkeypatch):
    """HiGHS stops soon after it is asked to. One that never stops is left alone."""
    form, cost = hard()
    asked = []

    class Deaf(_Highs):
        def setOptionValue(self, name, value):
            asked.append(name)
            return super().setOptionValue(name, 1e9 if name == "time_limit" else value)

    monkeypatch.setattr(_core, "_Highs", Deaf)
    begin = time.monotonic()
    _, _, finished = form.minimise(cost, float("inf"), 0.2)
    assert "time_limit" in asked
    assert not finished
    assert time.monotonic() - begin >= 0.2 + highs.GRACE_S
    until(lambda: not solving(), "the end of the solve")
    leave = threading.Event()
    monkeypatch.setattr(Deaf, "run", lambda _: leave.wait())
    assert form.minimise(cost, float("inf"), 0.2) == (0.0, None, False)
    leave.set()


def solving():
    return [thread for thread in threading.enumerate() if thread.name == "HiGHS"]


STUCK = """
from tests.solvers.test_highs import hard, solving

form, cost = hard()
form.relax(cost, 3600.0)
print("began", flush=True)
try:
    form.minimise(cost, float("inf"), 3600.0)
except KeyboardInterrupt:
    print("heard", flush=True)
    for thread in solving():
        thread.join()
    print("ended", flush=True)
"""


def test_ctrl_c_amid_a_solve_is_heard():
    with running(STUCK, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == "began\n"
        begin = processes.cpu_s([process.pid])
        until(lambda: processes.cpu_s([process.pid]) > begin + 0.3, "a solve")
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "heard\nended\n"
        assert process.wait() == 0
        assert process.stderr.read() == ""


AT_EXIT = """
import sys, time
import numpy as np
from scipy.sparse import random
from pearl.solvers.model import highs

highs.GRACE_S, highs.ENDING_S = 0.0, float(sys.argv[1])
n, until = 8_000, time.monotonic() + 0.01
rows, zeros, ones = random(n, n, 0.004, format="csr", random_state=1), np.zeros(n), np.ones(n)
box = zeros, ones, zeros, ones
p = highs.LinearProgram(rows, -ones, *box, ones.astype(np.int32), until, 1e-6, "choose")
print(highs.solve(p), len(highs._going), flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize("ending_s", [0.0, LONG_S])
def test_a_process_that_ends_amid_presolve_keeps_its_exit_status(ending_s):
    """C++ aborts a process whose interpreter unwinds a thread at its end."""
    with running(AT_EXIT, str(ending_s), stderr=subprocess.PIPE) as process:
        assert process.communicate() == ("None 1\n", "")
        assert process.returncode == 3


def test_the_solvers_are_there_without_scipy_and_a_plan_without_its_optimisers():
    code = (
        "import sys, pearl.solvers\nprint('scipy' in sys.modules)\n"
        "from pearl import solve\nfrom pearl.testing.graphs import random_problem\n"
        "solve(*random_problem(3, most_tasks=4, most_devices=2), certify=False)\n"
        "print('scipy.optimize' in sys.modules)"
    )
    assert output_of(code) == ["False", "False"]
