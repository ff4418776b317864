"""Periods of synchronous dataflow graphs whose throughput is known.

Every `*.sdf` with its `*.expected.json`, and the applications of `classic.json` (modem, sample-rate
converter and satellite receiver of Bhattacharyya, Murthy and Lee 1999), in the folder `sdf` of the
data. Howard's algorithm on the single-rate expansion, the linear program min P subject to
u_dst − u_src + tokens · P ≥ seconds, and a self-timed simulation must all give the known period.

The eight graphs of SDF3's test bench (`sdf3.json`; Stuijk, Geilen and Basten 2006) are planned on
four equal devices with free links, with a time limit of 5 CPU-seconds; `LEAST` has their least
periods.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.bars import AbsentError, Bar, Part
from benchmarks.solver.clock import timed
from benchmarks.solver.instances import mode
from pearl.errors import SpecError
from pearl.graph.cycle_ratio import Arc, howard
from pearl.graph.period import expand, simulate
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl_devices import Device, Kernel, Link, Platform

TOLERANCE = 1e-9
LARGE = "satellite"
LARGE_S = 1.0
"""What Howard's algorithm may take on the satellite receiver, CPU seconds."""

ITERATIONS = 60
"""Iterations of a simulation; its last ones are compared, the transient is over long before."""

LEAST = {
    "mp3decoder_block_parallelism": 2_422_328.0,
    "mp3decoder_granule_parallelism": 2_119_558.0,
    "modem": 16.0,
    "samplerate": 960.0,
    "h263encoder": 1_035_507.0,
    "h263decoder": 332_046.0,
    "mp3playback": math.nan,
    "satellite": 1_200.0,
}
"""Graph of SDF3 → least period on four equal devices. The first was found with OR-Tools by loads,
the others are proved by this solver; for mp3playback nobody knows it."""

LIMIT_S = 5.0
"""CPU seconds of each plan."""


@dataclass(frozen=True)
class Case:
    """A graph, the time of one firing of each task, and what is known of it: the period of an
    iteration (None: it deadlocks) and the repetition vector (None: not given)."""

    graph: TaskGraph
    seconds: Mapping[str, float]
    period: Fraction | None
    repetition: Mapping[str, int] | None


def cases(folder: Path) -> Iterator[Case]:
    """All graphs of a data folder. Raises AbsentError naming what is not there."""
    sdf = folder / "sdf"
    texts = sorted(sdf.glob("*.sdf"))
    classic = sdf / "classic.json"
    if not texts or not classic.is_file():
        raise AbsentError(f"{sdf} with classic.json and *.sdf is not there")
    for text in texts:
        known = text.with_name(text.name.removesuffix(".sdf") + ".expected.json")
        if not known.is_file():
            raise AbsentError(f"{known} is not there")
        yield read_case(text, json.loads(known.read_text()))
    for name, found in json.loads(classic.read_text()).items():
        edges = tuple(Edge(a, b, p, c, tokens) for a, p, c, b, tokens in found["edges"])
        times = {task: float(t) for task, t in found["execution_time"].items()}
        tasks = tuple(Task(task, Kernel("actor")) for task in times)
        yield Case(TaskGraph(name, tasks, edges), times, Fraction(found["period"]), None)


def read_case(path: Path, known: Mapping[str, Any]) -> Case:
    graph, seconds = read_sdf(path.read_text(), path.name)
    repetition = {t: round(float(q)) for t, q in known["repetitionVector"].items()}
    if known["deadlock"] == "True":
        return Case(graph, seconds, None, repetition)
    rate = known["throughput"]
    period = Fraction(0) if rate in ("inf", "Infinity") else 1 / Fraction(rate)
    return Case(graph, seconds, period, repetition)


ACTOR = r"(\w+)\s*(?:\[\s*([^\]\s]+)\s*\])?"
EDGE = re.compile(rf"^{ACTOR}\s*--+(?:(.*?[^-\s].*?)--+|-*)>\s*{ACTOR}$")
SPEC = re.compile(r"^(?:(initial tokens|production rate|consumption rate)\s*:\s*)?(\d+)$")


def read_sdf(text: str, where: str) -> tuple[TaskGraph, dict[str, float]]:
    """A graph in the text form of cmlib, and the time of a firing of each task.

    A line of the graph is `A[time] -- tokens --> B[time]`; instead of tokens there may be `initial
    tokens: n`, `production rate: n` and `consumption rate: n`, separated by `;`. A time may be a
    fraction; by default it is 1, of inputs and outputs 0. A line that does not fit is a ValueError.
    """
    body = re.search(r"dataflow\s+graph\s+(\w+)\s*\{(.*?)\}", text, re.DOTALL)
    if body is None:
        raise ValueError(f"{where}: no `dataflow graph NAME {{ … }}` in it")
    times: dict[str, float] = {}
    outside: set[str] = set()
    edges: list[Edge] = []
    for line in body[2].splitlines():
        line = line.split("//")[0].strip()
        ports = re.match(r"^(?:inputs|outputs)\s+(.*)$", line)
        if ports:
            outside |= {name.strip() for name in ports[1].split(",")}
        elif line:
            edges.append(_edge(line, times, where))
    names = dict.fromkeys(n for e in edges for n in (e.src, e.dst))
    seconds = {n: times.get(n, 0.0 if n in outside else 1.0) for n in names}
    tasks = tuple(Task(n, Kernel("actor")) for n in names)
    return TaskGraph(body[1], tasks, tuple(edges)), seconds


def _edge(line: str, times: dict[str, float], where: str) -> Edge:
    found = EDGE.match(line)
    if found is None:
        raise ValueError(f"{where}: {line!r} is not `A[time] -- tokens --> B`")
    src, src_time, specs, dst, dst_time = found.groups()
    for name, given in ((src, src_time), (dst, dst_time)):
        if given:
            times[name] = float(Fraction(given))
    values = {"initial tokens": 0, "production rate": 1, "consumption rate": 1}
    for spec in (specs or "").split(";"):
        if spec.strip():
            part = SPEC.match(spec.strip())
            if part is None:
                raise ValueError(f"{where}: {spec.strip()!r} in {line!r} is no number of tokens")
            values[part[1] or "initial tokens"] = int(part[2])
    return Edge(
        src, dst, values["production rate"], values["consumption rate"], values["initial tokens"],
    )  # fmt: skip


def timed_arcs(case: Case) -> tuple[int, list[Arc]]:
    """The single-rate expansion with the time of the firing that each arc leaves."""
    x = expand(case.graph)
    arcs = [(s, d, case.seconds[x.units[x.nodes[s][0]][0]], m) for s, d, m, _ in x.arcs]
    return len(x.nodes), arcs


def by_linear_program(n: int, arcs: list[Arc]) -> float:
    """The least P for which u_dst − u_src + tokens · P ≥ seconds has a solution, by HiGHS."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    values = [(k, s, -1.0) for k, (s, d, _, _) in enumerate(arcs) if s != d]
    values += [(k, d, 1.0) for k, (s, d, _, _) in enumerate(arcs) if s != d]
    values += [(k, n, float(m)) for k, (_, _, _, m) in enumerate(arcs)]
    at, column, value = zip(*values, strict=True)
    matrix = csr_array((value, (at, column)), shape=(len(arcs), n + 1))
    low = np.append(np.full(n, -np.inf), 0.0)
    result = milp(
        np.append(np.zeros(n), 1.0),
        bounds=Bounds(low, np.full(n + 1, np.inf)),
        constraints=LinearConstraint(matrix, np.array([w for _, _, w, _ in arcs]), np.inf),
    )
    if result.status != 0:
        raise RuntimeError(f"HiGHS: {result.message}")
    return float(result.fun)


def by_simulation(n: int, arcs: list[Arc]) -> float:
    """The long-run mean time of an iteration in self-timed execution: that of the slowest firing,
    over the last iterations, as many as make a whole number of every period there may be."""
    start = simulate(n, arcs, ITERATIONS)
    span = ITERATIONS // 2  # 30: a multiple of 1, 2, 3, 5 and 6 iterations
    return float((start[-1] - start[-1 - span]).max() / span)


def cpu_s(call: Callable[[], object], repeats: int = 5) -> float:
    """Median CPU seconds of a call."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times)


def on_four_devices(graph: Mapping[str, Any], name: str) -> tuple[TaskGraph, CostTable]:
    """A graph of `sdf3.json` on four equal devices with free links."""
    edges = tuple(Edge(a, b, p, c, tokens) for a, p, c, b, tokens in graph["edges"])
    found = tuple(Device(f"d{k}", "null") for k in range(4))
    links = tuple(Link("d0", d.name, 0.0, 1e30, paid_by="nobody") for d in found[1:])
    modes = tuple(mode(t, d.name, s) for t, s in graph["times"].items() for d in found)
    tasks = tuple(Task(t) for t in graph["times"])
    return TaskGraph(name, tasks, edges), CostTable(Platform("four", found, links, "d0"), modes)


def plans(folder: Path) -> Part:
    """The plans of the graphs of SDF3 and their bars."""
    rows, bars, values = [], [], {}
    for name, graph in json.loads((folder / "sdf" / "sdf3.json").read_text()).items():
        plan, cpu, _ = timed((*on_four_devices(graph, name), "throughput"), LIMIT_S)
        values[name] = {"period": plan.period_s, "bound": plan.bound_s, "cpu_s": cpu}
        known = LEAST[name]
        shown = [f"{s:.10g}" for s in (known, plan.period_s, plan.bound_s)]
        rows.append([name, *shown, plan.status, f"{cpu:.2f}"])
        right = math.isnan(known) or math.isclose(plan.period_s, known, rel_tol=1e-6)
        sound = 0 < plan.bound_s <= plan.period_s * (1 + TOLERANCE)
        asked = f"{known:.10g}, a bound above 0" if known == known else "a bound above 0"
        bars.append(Bar(f"plan of {name}", f"{shown[1]}, bound {shown[2]}", asked, right and sound))
    columns = ["graph", "least known", "period", "bound", "status", "CPU s"]
    return Part("SDF3 on four devices", columns, rows, bars, [], {"plans": values})


def run(quick: bool, data: Path | None) -> Part:
    """The periods and, unless `quick`, the plans. Needs the folder `sdf` of the data."""
    if data is None:
        raise AbsentError("graphs with a known throughput: give their folder with --data")
    part = periods(data)
    if quick or not (data / "sdf" / "sdf3.json").is_file():
        return replace(part, left_out=["the plans of the graphs of SDF3"])
    more = plans(data)
    return replace(part, bars=[*part.bars, *more.bars], values=part.values | more.values)


def periods(data: Path) -> Part:
    """The periods of all graphs whose throughput is known."""
    rows: list[list[str]] = []
    wrong: list[str] = []
    slowest = math.nan
    values: dict[str, Any] = {}
    found = list(cases(data))
    for case in found:
        name = case.graph.name
        if case.repetition is not None and dict(case.graph.repetition) != dict(case.repetition):
            wrong.append(f"{name}: repetition vector {dict(case.graph.repetition)}")
        if case.period is None:
            try:
                expand(case.graph)
                wrong.append(f"{name}: no deadlock found")
            except SpecError:
                rows.append([name, "deadlock", *("" for _ in range(5))])
            continue
        n, arcs = timed_arcs(case)
        period = howard(n, arcs)[0]
        given = {
            "howard": period,
            "linear program": by_linear_program(n, arcs),
            "simulation": by_simulation(n, arcs),
        }
        known = float(case.period)
        wrong += [
            f"{name}: {who} {value!r} instead of {known!r}"
            for who, value in given.items()
            if not math.isclose(value, known, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        ]
        seconds = cpu_s(lambda: howard(n, arcs))  # noqa: B023 (called at once)
        slowest = seconds if name == LARGE else slowest
        values[name] = {**given, "known": known, "firings": n, "arcs": len(arcs), "cpu_s": seconds}
        shown = [f"{value:.9g}" for value in given.values()]
        rows.append([name, f"{known:.9g}", *shown, str(n), f"{1e3 * seconds:.2f}"])
    met = f"{len(found)} graphs" if not wrong else f"{len(wrong)} disagree: {wrong[0]}"
    bars = [
        Bar(
            "repetition vector, Howard = linear program = simulation = known", met, "all", not wrong
        )
    ]
    if not math.isnan(slowest):
        bars.append(
            Bar(
                f"Howard on {LARGE} ({values[LARGE]['firings']} firings), CPU", f"{slowest:.3f} s",
                f"below {LARGE_S:g} s", slowest < LARGE_S,
            ),
        )  # fmt: skip
    columns = ["graph", "known", "Howard", "linear program", "simulation", "firings", "Howard, ms"]
    return Part("Synchronous dataflow", columns, rows, bars, [], {"graphs": values})
