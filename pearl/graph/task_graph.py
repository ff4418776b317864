"""`TaskGraph`: tasks that fire again and again, and the edges between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pearl.errors import SpecError
from pearl.graph.graph_checks import reach_problems, state_problems
from pearl.graph.parallel_edges import EdgeKey, key_edges
from pearl.graph.parts import Edge, Fusion, Replica, Task
from pearl.graph.repetition import firings_of
from pearl_devices import Kernel
from pearl_devices.validation import explain_misfit, is_whole, quote

__all__ = ["Edge", "Fusion", "Replica", "Task", "TaskGraph"]


@dataclass(frozen=True)
class TaskGraph:
    """A timed dataflow graph of one training loop.

    Attributes:
        name: for messages.
        tasks: in the order of the algorithm's loop.
        edges: in the order of the algorithm's loop.
        states: mutable state → bytes.
        fusions: sets of tasks that may run as one call.
        env_steps: environment steps of one iteration; 0 if it steps no environment.
        updates: gradient steps of one iteration.
        batch: samples of one gradient step.
        evaluation: the task outside the loop that evaluates the policy; none of `tasks` waits for
            it.

    Raises:
        SpecError: unknown names; rates that disagree or a deadlock (the text names a cycle).
    """

    name: str
    tasks: tuple[Task, ...]
    edges: tuple[Edge, ...]
    states: Mapping[str, float] = field(default_factory=dict)
    fusions: tuple[Fusion, ...] = ()
    env_steps: int = 0
    updates: int = 0
    batch: int = 0
    evaluation: Task | None = None

    def __post_init__(self) -> None:
        self._check_types()
        names = [t.name for t in self.tasks]
        problems = []
        if not names:
            problems.append(f"graph {self.name!r} has no task; it needs at least one")
        problems += [f"graph {self.name!r}: task {n!r} appears twice" for n in _repeated(names)]
        fused = [" and ".join(sorted(f.tasks)) for f in self.fusions]
        problems += [f"graph {self.name!r}: {n} are fused twice" for n in _repeated(fused)]
        for e in self.edges:
            problems += [
                f"edge {e.src} → {e.dst}: no task {end!r}; there are {names}"
                for end in (e.src, e.dst)
                if end not in self._by_name
            ]
        for task in self.tasks:
            problems += [
                f"task {task.name}: no state {s!r}; there are {sorted(self.states)}"
                for s in task.reads + task.writes
                if s not in self.states
            ]
        for fusion in self.fusions:
            problems += [
                f"fusion {fusion.name}: no task {n!r}; there are {names}"
                for n in fusion.tasks
                if n not in self._by_name
            ]
        if problems:
            raise SpecError(*problems)
        problems += reach_problems(self.edges, self.repetition)
        problems += state_problems(self.name, self.states, self.tasks, self._touching)
        if problems:
            raise SpecError(*problems)

    def _check_types(self) -> None:
        """Check that fields have the right types, and numbers the right range."""
        where = f"graph {quote(self.name)}"
        problems = []
        for name, kind in (("tasks", Task), ("edges", Edge), ("fusions", Fusion)):
            given = getattr(self, name)
            if not isinstance(given, list | tuple):
                given = (given,)
            problems += [
                f"{where}: {name} has {quote(each)}; a tuple of {kind.__name__}s is needed"
                for each in given
                if not isinstance(each, kind)
            ]
            object.__setattr__(self, name, tuple(given))
        if not isinstance(self.name, str):
            problems.append(f"{where}: name is {quote(self.name)}; text is needed")
        if isinstance(self.states, Mapping):
            object.__setattr__(self, "states", MappingProxyType(dict(self.states)))
            problems += [
                f"{where}: bytes of state {quote(s)} {wrong}"
                for s, size in self.states.items()
                if (wrong := explain_misfit(size))
            ]
        else:
            problems.append(
                f"{where}: states is {quote(self.states)}; a mapping from names to bytes is needed"
            )
        problems += [
            f"{where}: {name} is {quote(getattr(self, name))}; it must be a whole number of at "
            "least 0"
            for name in ("env_steps", "updates", "batch")
            if not is_whole(getattr(self, name)) or getattr(self, name) < 0
        ]
        if problems:
            raise SpecError(*problems)

    def task(self, name: str) -> Task:
        """Return the task called `name`; a KeyError lists the tasks."""
        if name not in self._by_name:
            raise KeyError(f"no task {name!r}; there are {list(self._by_name)}")
        return self._by_name[name]

    def kernel_of(self, tasks: Sequence[str]) -> Kernel:
        """Return the kernel of a call of these tasks: of their fusion, if the graph has one, else
        of the first task."""
        return self._fused.get(frozenset(tasks)) or self.task(tasks[0]).kernel

    @cached_property
    def _fused(self) -> Mapping[frozenset[str], Kernel]:
        return {frozenset(f.tasks): f.kernel for f in self.fusions}

    @cached_property
    def _by_name(self) -> Mapping[str, Task]:
        return {t.name: t for t in self.tasks}

    @cached_property
    def _touching(self) -> Mapping[str, list[Edge]]:
        """The edges into and out of each task, without self-loops."""
        found: dict[str, list[Edge]] = {name: [] for name in self._by_name}
        for e in (edge for edge in self.edges if edge.src != edge.dst):
            found[e.src].append(e)
            found[e.dst].append(e)
        return found

    @cached_property
    def ties(self) -> Mapping[str, list[str]]:
        """A state or a group → its tasks, which share a device."""
        groups = dict.fromkeys(t.group for t in self.tasks if t.group)
        return {
            **{f"state {s}": [t.name for t in self.tasks if s in t.home] for s in self.states},
            **{f"group {g}": [t.name for t in self.tasks if t.group == g] for g in groups},
        }

    def classes(self, more: Iterable[Sequence[str]] = ()) -> tuple[tuple[str, ...], ...]:
        """Return the classes of tasks that share a device, because of `ties` or of `more` sets of
        tasks; classes and tasks in the order of the graph."""
        class_of = {name: [name] for name in self._by_name}
        for names in (*self.ties.values(), *more):
            for name in names[1:]:
                one, other = class_of[names[0]], class_of[name]
                if one is not other:
                    one += other
                    class_of |= dict.fromkeys(other, one)
        order = {name: i for i, name in enumerate(class_of)}
        unique = {id(members): members for members in class_of.values()}
        return tuple(tuple(sorted(c, key=order.__getitem__)) for c in unique.values())

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels of its tasks and fusions, for which plans need estimates."""
        return [t.kernel for t in self.tasks] + [f.kernel for f in self.fusions]

    def origin(self, name: str) -> tuple[str, int]:
        """Return the task that `name` is or is a copy of, and the number of the copy (0 for a
        task)."""
        part = self.task(name).part
        return (part.task, part.replica) if part else (name, 0)

    @cached_property
    def repetition(self) -> Mapping[str, int]:
        """Firings of each task in one iteration: the least positive solution of the balance
        equations (one for each connected component)."""
        return MappingProxyType(firings_of(self.name, self._touching, self.edges))

    def to_networkx(self) -> Any:
        """Return a MultiDiGraph of networkx whose attributes are the non-default fields of tasks
        and edges; `pearl.io.from_networkx` reads it back."""
        import networkx as nx

        found = nx.MultiDiGraph(name=self.name, **_given(self, "name", "tasks", "edges"))
        for task in self.tasks:
            found.add_node(task.name, **_given(task, "name"))
        for edge in self.edges:
            found.add_edge(edge.src, edge.dst, **_given(edge, "src", "dst"))
        return found

    def with_slack(self, slack: Mapping[EdgeKey, int]) -> TaskGraph:
        """Return the same graph with the slack of these edges set, by their keys."""
        keyed = key_edges(self.edges)
        more = {k: slack[k] for k, e in keyed.items() if slack.get(k, e.slack) != e.slack}
        if not more:
            return self
        edges = (replace(e, slack=more[k]) if k in more else e for k, e in keyed.items())
        return replace(self, edges=tuple(edges))


def _given(value: Any, *left_out: str) -> dict[str, Any]:
    some = [f for f in fields(value) if f.name not in left_out]
    return {f.name: v for f in some if (v := getattr(value, f.name)) not in (f.default, {}, ())}


def _repeated(names: list[str]) -> list[str]:
    return sorted(n for n, times in Counter(names).items() if times > 1)
