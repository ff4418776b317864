"""Problems from elsewhere as graphs and costs: job shops from files, graphs of networkx."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pearl.errors import SpecError
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl_devices import Device, Link, Platform
from pearl_devices.validation import quote

__all__ = ["from_networkx", "read_fjsp"]


def read_fjsp(path: str | Path) -> tuple[TaskGraph, CostTable]:
    """Read a flexible job shop from a file in Brandimarte's format, or a plain job shop, for
    `objective="makespan"`.

    An operation is a task `j0o0`, a machine a device `m0` with one lane, a job a chain of edges.
    Links between machines are free. Times become seconds.

    The first line of the file has the numbers of jobs and machines, and at most one more number,
    the mean number of machines of an operation, which is not read. Each further line is a job: its
    number of operations, and for each operation the number of machines and the pairs machine, time
    (Brandimarte 1993, "Routing and scheduling in a flexible job shop by tabu search"). If not all
    lines are such jobs, each may be a job of a plain job shop: the pair machine, time of each
    operation, every machine at most once. Machines count from 0 or from 1, as fits the file.
    Nothing may follow the jobs: set-up times and other additions are refused.

    Raises:
        SpecError: the file cannot be read or is no job shop; the text names the line.
    """
    if not isinstance(path, str | Path):
        raise SpecError(f"path is {quote(path)}; the path of a file is needed")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None
    lines = [(n, line.split()) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    try:
        first_line = [float(word) for word in lines[0][1][2:]]
        jobs, machines = (int(word) for word in lines[0][1][:2])
    except (IndexError, ValueError):
        first_line = [0.0, 0.0]
    if len(first_line) > 1:
        raise SpecError(
            f"{path}: not a job shop: its first line must have the numbers of jobs and machines, "
            "and at most the mean number of machines of an operation"
        )
    found = len(lines) - 1
    if jobs < 1 or found < jobs:
        raise SpecError(
            f"{path}: {jobs} jobs announced, {found} lines of jobs found; there must be one line "
            "for each job, and one job at least"
        )
    if found > jobs:
        raise SpecError(
            f"{path}, line {lines[jobs + 1][0]}: {jobs} jobs are announced and end before this "
            "line; further jobs, set-up times and other additions are not read: announce all jobs, "
            "or remove what follows them"
        )
    shop = _jobs(lines[1:], str(path))
    used = {m for job in shop for ways in job for m, _ in ways}
    first = 1 if max(used) == machines else 0
    if min(used) < first or max(used) > machines - 1 + first:
        raise SpecError(
            f"{path}: machines {min(used)} to {max(used)} are used, {machines} announced; they "
            "count from 0 or from 1"
        )
    names = [f"m{k}" for k in range(machines)]
    links = tuple(Link(names[0], n, 0.0, 1e18, paid_by="nobody") for n in names[1:])
    platform = Platform("machines", tuple(Device(n) for n in names), links)
    tasks, edges, modes = [], [], []
    for j, job in enumerate(shop):
        for o, ways in enumerate(job):
            tasks.append(Task(f"j{j}o{o}"))
            if o:
                edges.append(Edge(f"j{j}o{o - 1}", f"j{j}o{o}"))
            modes += [Mode.of(f"j{j}o{o}", names[m - first], s) for m, s in ways]
    return TaskGraph(Path(path).stem, tuple(tasks), tuple(edges)), CostTable(platform, tuple(modes))


Job = list[list[tuple[int, float]]]
"""The ways (machine, time) of each operation of a job."""


def _jobs(lines: list[tuple[int, list[str]]], path: str) -> list[Job]:
    """Return the jobs of lines, given with their numbers; of a plain job shop if that fits all
    lines and Brandimarte's format does not."""
    try:
        return [_job(words, f"{path}, line {n}") for n, words in lines]
    except SpecError:
        plain = [_plain_job(words) for _, words in lines]
        if not all(plain):
            raise
        return plain


def _plain_job(words: list[str]) -> Job:
    """Return the operations of a line of pairs machine, time; none if it is no such line."""
    try:
        machines = [int(word) for word in words[::2]]
        times = [float(word) for word in words[1::2]]
    except ValueError:
        return []
    fits = len(machines) == len(times) == len(set(machines)) and all(0 <= t < 1e15 for t in times)
    return [[way] for way in zip(machines, times, strict=True)] if fits else []


def _job(words: list[str], where: str) -> Job:
    """Return the operations of a line in Brandimarte's format."""
    job, at = [], 1
    try:
        operations = int(words[0])
        for _ in range(operations):
            pairs = range(at + 1, at + 1 + 2 * int(words[at]), 2)
            job.append([(int(words[k]), float(words[k + 1])) for k in pairs])
            at = pairs.stop
    except (IndexError, ValueError) as error:
        raise SpecError(f"{where}: not a job of a flexible job shop: {error}") from None
    if operations < 1 or not all(job) or at != len(words):
        raise SpecError(
            f"{where}: {operations} operations announced, {len(words)} numbers found; each "
            "operation needs its number of machines, at least 1, and as many pairs of machine, "
            "time (in a plain job shop, every line has pairs only, each machine at most once)"
        )
    if any(not 0 <= seconds < 1e15 for ways in job for _, seconds in ways):
        raise SpecError(f"{where}: a time is below 0, above 1e15 or no number")
    return job


def from_networkx(graph: Any, name: str = "") -> TaskGraph:
    """Return the task graph of a directed graph of networkx: nodes are tasks, with text as names.

    Attributes of nodes are fields of `Task`, attributes of edges are fields of `Edge` (`bytes`,
    `tokens_seq`, `production`, …). Attributes of the graph are `states`, `env_steps`, `updates`,
    `batch` and `fusions`.

    name: of the task graph; by default the graph's name.

    Raises:
        SpecError: the graph is not directed, two nodes have one name, or an attribute is no field.
    """
    if not callable(getattr(graph, "is_directed", None)) or not graph.is_directed():
        raise SpecError(
            f"graph is {quote(graph)}; a DiGraph or MultiDiGraph of networkx is needed, whose "
            "edges lead from producer to consumer"
        )
    names = {node: str(node) for node in graph.nodes}
    tasks = [
        Task(names[n], **_checked(Task, values, f"node {n}", ("name", "part")))
        for n, values in graph.nodes(data=True)
    ]
    edges = [
        Edge(names[a], names[b], **_checked(Edge, values, f"edge {a} → {b}", ("src", "dst")))
        for a, b, values in graph.edges(data=True)
    ]
    own = {key: value for key, value in graph.graph.items() if key != "name"}
    rest = _checked(TaskGraph, own, "the graph", ("name", "tasks", "edges", "evaluation"))
    title = name or str(graph.graph.get("name") or "graph")
    return TaskGraph(title, tuple(tasks), tuple(edges), **rest)


def _checked(
    kind: type, values: Mapping[str, Any], where: str, taken: tuple[str, ...]
) -> dict[str, Any]:
    allowed = [f.name for f in fields(kind) if f.name not in taken]
    unknown = [key for key in values if key not in allowed]
    if unknown:
        raise SpecError(
            f"{where} has the attribute {quote(unknown[0])}, which is no field of a "
            f"{kind.__name__}; allowed are {', '.join(allowed)}: rename it, or leave it out"
        )
    return dict(values)
