"""What a graph's states and reaches ask of its edges, beyond rates and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pearl.graph.task_graph import TaskGraph


def reach_problems(graph: TaskGraph) -> Iterator[str]:
    """The edges whose window or suffix has no meaning, a line each."""
    firings = graph.repetition
    for e in graph.edges:
        if e.reach == 0:
            continue
        where, steps = f"edge {e.src} → {e.dst}", firings[e.src] * e.production
        if e.reach is None and (e.tokens or steps == 1):
            why = f"{e.tokens} tokens carry it over" if e.tokens else f"{e.src} gives one token in"
            yield (
                f"{where}: reach is the suffix t..T, and {why} an iteration, so that nothing says "
                "where it ends; leave out the tokens, give it the rates of a rollout of T steps, "
                "or choose a window (reach n)"
            )
        elif e.tokens:
            yield (
                f"{where}: reach is the window t..t+{e.reach}, which the end of an iteration cuts, "
                f"and {e.tokens} tokens carry the edge over that end; leave them out"
            )
        elif e.reach is not None and e.reach > steps:
            yield (
                f"{where}: reach is the window t..t+{e.reach}, longer than the rollout: an "
                f"iteration has {steps} steps; choose at most {steps}, or the suffix (None)"
            )
        if e.bytes:
            yield (
                f"{where}: {e.bytes:g} bytes a firing are a message, which is read once, and a "
                "window or a suffix reads it again; let both tasks name a state, and send 0 bytes"
            )


def state_problems(graph: TaskGraph) -> Iterator[str]:
    """The tasks that share a state in no fixed order, a line each."""
    for state in graph.states:
        touch = [t for t in graph.tasks if state in t.reads + t.writes]
        for i, a in enumerate(touch):
            for b in touch[i + 1 :]:
                if state not in a.writes + b.writes:
                    continue
                for src, dst in ((a.name, b.name), (b.name, a.name)):
                    if dst not in _reached(graph, src):
                        yield (
                            f"graph {graph.name!r}: {a.name} and {b.name} share state {state!r} "
                            f"and one writes it, but no path of edges leads from {src} to "
                            f"{dst}; without one their order would depend on timing"
                        )


def _reached(graph: TaskGraph, start: str) -> set[str]:
    found, queue = {start}, [start]
    while queue:
        here = queue.pop()
        new = {e.dst for e in graph.touching[here]} - found
        found |= new
        queue += new
    return found
