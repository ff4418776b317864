"""The time limit of a solve and Ctrl-C, on problems far too large for the time given."""

import itertools
import signal
import time
from dataclasses import replace

import pytest

from benchmarks.processes import cpu_s
from benchmarks.solver.instances import large
from pearl import solve, time_limit
from pearl.errors import InfeasibleError
from pearl.graph.period import expand
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.solvers import METHODS, method_run
from pearl.solvers.first_use import compile_searches
from pearl.solvers.large.load_annealing import Annealing
from pearl.solvers.large.starts import greedy
from pearl.solvers.methods import milp
from pearl.solvers.model import highs
from pearl.solvers.model.search_space import search_spaces
from pearl.solvers.model.tables import to_places
from pearl.testing.graphs import devices, mode, star, tasks
from pearl.time_limit import STRIDE, OutOfTimeError, extended, look, watched, within
from pearl.verification import check_plan
from pearl_devices import Kernel
from tests.processes import until
from tests.solvers.test_highs import running

LATE_S = 8.0
"""CPU-seconds that a solve may take beyond its limit here: what it may be is 1 s, on a machine that
has nothing else to do."""


def audio():
    """A decoder of four actors: granules of 576 samples, turned from 48,000 to 44,100 a second."""
    edges = (
        Edge("mp3", "src", 576, 480, bytes=4608.0),
        Edge("src", "app", 441, 1, bytes=1764.0),
        Edge("app", "dac", 1, 1, bytes=4.0),
    )
    return TaskGraph(
        "audio", tuple(Task(n, Kernel(n)) for n in ("mp3", "src", "app", "dac")), edges
    )


def one_to_many(n=4_000):
    edges = (Edge("a", "b", n, 1, bytes=8.0 * n), Edge("b", "a", 1, n, tokens_seq=n))
    return TaskGraph("rate", tuple(Task(n, Kernel(n)) for n in "ab"), edges)


def table(graph):
    places = zip(("a", "b"), (1e-5, 7e-6), strict=True)
    times = [(d, s) for d, s in places]
    modes = [mode(t.name, d, s * (1 + i)) for i, t in enumerate(graph.tasks) for d, s in times]
    return CostTable(star(devices("a", "b")), tuple(modes))


@pytest.mark.parametrize(
    ("method", "objective", "make"),
    [
        (m, o, (audio, one_to_many)[(i + j) % 2])
        for i, (m, method) in enumerate(METHODS.items())
        for j, o in enumerate(o for o in method.objectives if o != "power_efficiency")
    ],
)
def test_the_time_limit_holds_for_graphs_of_many_firings(method, objective, make):
    """Each method and objective on one of the two graphs, each method on both in turn."""
    problem = Problem(graph := make(), table(graph), objective=objective)
    compile_searches(problem)  # before the time limit begins
    begin = time.process_time()
    plan = solve(graph, problem.costs, objective=objective, method=method, time_limit_s=0.01)
    assert time.process_time() - begin < LATE_S
    # A fast machine ends what has no search, and a first plan may meet a bound that needs none.
    assert plan.status == "time_limit" or method in ("heft", "tabu") or plan.gap == 0
    check_plan(plan, problem)


def test_what_has_no_time_says_how_large_the_graph_is_and_the_way_out(monkeypatch):
    """Limits forbid the plan that needs no search, and there is no time to search."""
    monkeypatch.setattr(method_run, "first_plan", lambda _: None)
    monkeypatch.setattr(method_run, "GRACE_S", 0.0)
    graph = one_to_many()
    with pytest.raises(InfeasibleError) as error:
        solve(graph, table(graph), time_limit_s=1e-6)
    assert "4,001 firings" in str(error.value)
    assert "at least 0.056 s" in str(error.value), "the work of its tasks"


def test_too_many_firings_for_the_time_limit_end_at_once_with_the_bound_of_their_work():
    graph = one_to_many(1_000_003)
    begin = time.process_time()
    with pytest.raises(InfeasibleError, match=r"at least .* s: give more time"):
        solve(graph, table(graph), time_limit_s=5.0)
    assert time.process_time() - begin < 1.0


def test_a_common_divisor_of_rates_costs_nothing():
    """Arcs are as many as firings, not as tokens."""
    graph = TaskGraph("audio", tasks("a", "b"), (Edge("a", "b", 44_100, 48_000, 600),))
    small = replace(graph, edges=(Edge("a", "b", 147, 160, 2),))
    assert expand(graph).arcs == expand(small).arcs


def test_the_decoder_has_as_many_firings_as_is_said():
    assert sum(audio().repetition.values()) == 5_303


def test_loops_look_at_the_clock_before_they_begin_and_every_so_often(monkeypatch):
    looks, seen = [], []
    monkeypatch.setattr(time_limit, "look", lambda: looks.append(1))
    assert list(watched(range(2 * STRIDE + 1))) == list(range(2 * STRIDE + 1))
    assert len(looks) == 3
    growing = [0]
    for item in watched(growing):
        seen.append(item)
        if item < 10:
            growing.append(item + 1)
    assert seen == list(range(11))


def test_a_limit_within_another_is_never_later_and_ends_with_its_block():
    now = time.monotonic()
    look()
    with within(now + 3600):
        look()
        with within(now - 1), pytest.raises(OutOfTimeError):
            look()
        look()
    with within(now - 1):
        with within(now + 3600), pytest.raises(OutOfTimeError):
            look()
        with extended(now + 3600):
            look()
        with pytest.raises(OutOfTimeError):
            list(watched([1]))
    look()


def test_a_host_too_busy_for_any_search_gives_a_plan_of_balanced_loads(monkeypatch):
    """A look at the clock takes 1 ms. Neither annealing nor HiGHS gets any time."""
    graph, costs = large(1, 0.3, tasks=24, devices=3, shape="random")
    passed = itertools.count(time.monotonic(), 1e-3)
    monkeypatch.setattr(time, "monotonic", lambda: next(passed))

    def ask_in_vain(program):
        while time.monotonic() < program.until:
            pass

    monkeypatch.setattr(highs, "solve", ask_in_vain)
    monkeypatch.setattr(Annealing, "start", lambda search: search.ended.set())
    plan = solve(graph, costs, time_limit_s=10.0)
    monkeypatch.undo()
    (space,) = search_spaces(Problem(graph, costs))
    loads = to_places(space, even=True)
    start = build_timed_graph(loads.assignment(greedy(loads)))
    assert plan.status == "time_limit"
    assert plan.period_s <= max(start.loads_s.values()) * (1 + 1e-9)


def test_what_annealing_found_is_not_lost_when_the_time_is_up():
    problem = Problem(*large(1, 0.3, tasks=24, devices=3, shape="random"))
    (space,) = search_spaces(problem)
    loads = to_places(space, even=True)
    found = loads.assignment(greedy(loads))
    now = time.monotonic()
    with within(now):
        best = milp._better(None, [found], problem, now)
    assert best.cost == pytest.approx(max(build_timed_graph(found).loads_s.values()), rel=1e-9)


SOLVE = """
import sys, threading
from benchmarks.solver.instances import large, small
from pearl.solvers.model import highs
from pearl import solve
from pearl.solvers.makespan import cpsat, tabu
from tests.solvers.test_makespan import random_shop

what = sys.argv[1]

def began(module, name):
    known = getattr(module, name)
    def told(*args, **more):
        print("began", flush=True)
        return known(*args, **more)
    setattr(module, name, told)

if what == "cpsat":
    graph, costs = large(0, 1.0, tasks=60, devices=4)
    began(cpsat, "_solve_in_thread")
    cpsat.SHORT = 1e9
    more = {"objective": "makespan", "method": "cpsat"}
elif what == "milp":
    graph, costs = large(0, 1.0, tasks=500, devices=8)
    began(highs, "solve")
    more = {}
else:
    graph, costs = random_shop(0, 30, 4)
    began(tabu.TabuSearch, what)
    tabu.MOVES = 10**12
    more = {"objective": "makespan", "method": "tabu"}
try:
    solve(graph, costs, time_limit_s=3600.0, **more)
except KeyboardInterrupt:
    print("heard", flush=True)
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(300)  # what is being compiled is compiled to its end
    print(threading.active_count(), "thread", flush=True)
"""


@pytest.mark.sweep(2)
@pytest.mark.parametrize("what", ["cpsat", "milp", "run"])
def test_ctrl_c_is_heard_amid_a_search_and_leaves_nothing_behind(what):
    with running(SOLVE, what) as process:
        assert process.stdout.readline() == "began\n"
        begin = cpu_s([process.pid])
        until(lambda: cpu_s([process.pid]) > begin + 0.2, "a search")
        begin = cpu_s([process.pid])
        process.send_signal(signal.SIGINT)
        said = ""
        while said != "heard\n":
            said = process.stdout.readline()
            assert said in ("began\n", "heard\n")
        assert cpu_s([process.pid]) - begin < LATE_S
        assert process.stdout.read() == "1 thread\n"
        assert process.wait() == 0
