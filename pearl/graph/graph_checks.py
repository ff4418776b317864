"""Checks of a graph's states and reaches against its edges, beyond rates and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pearl.graph.parts import Edge, Task

Edges = Mapping[str, Sequence[Edge]]
"""Task → the edges into and out of it."""


def reach_problems(edges: Iterable[Edge], firings: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each edge whose window or suffix is meaningless. firings: per iteration."""
    for e in edges:
        if e.reach == 0:
            continue
        where, steps = f"edge {e.src} → {e.dst}", firings[e.src] * e.production
        carried = "1 token carries" if e.tokens == 1 else f"{e.tokens} tokens carry"
        if e.reach is None and (e.tokens or steps == 1):
            why = f"{carried} it over" if e.tokens else f"{e.src} gives one token in"
            yield (
                f"{where}: reach is the suffix t..T, and {why} an iteration, so its end is "
                "undefined; remove the tokens, use the rates of a rollout of T steps, or choose a "
                "window (reach n)"
            )
        elif e.tokens:
            yield (
                f"{where}: reach is the window t..t+{e.reach}, which the end of an iteration cuts, "
                f"and {carried} the edge over that end; remove the tokens"
            )
        elif e.reach is not None and e.reach > steps:
            yield (
                f"{where}: reach is the window t..t+{e.reach}, longer than the rollout: an "
                f"iteration has {steps} steps; choose at most {steps}, or the suffix (None)"
            )
        if e.bytes:
            yield (
                f"{where}: {e.bytes:g} bytes per firing are a message, which is read once, but a "
                "window or a suffix reads it again; let both tasks name a state, and send 0 bytes"
            )


def state_problems(
    graph: str, states: Iterable[str], tasks: Sequence[Task], touching: Edges
) -> Iterator[str]:
    """The tasks of a graph that share a state in no fixed order, a line each."""
    for state in states:
        touch = [t for t in tasks if state in t.reads + t.writes]
        for i, a in enumerate(touch):
            for b in touch[i + 1 :]:
                if state not in a.writes + b.writes:
                    continue
                for src, dst in ((a.name, b.name), (b.name, a.name)):
                    if dst not in _reached(touching, src):
                        yield (
                            f"graph {graph!r}: {a.name} and {b.name} share state {state!r} "
                            f"and one writes it, but no path of edges leads from {src} to "
                            f"{dst}; without one their order would depend on timing"
                        )


def _reached(touching: Edges, start: str) -> set[str]:
    found, queue = {start}, [start]
    while queue:
        here = queue.pop()
        new = {e.dst for e in touching[here]} - found
        found |= new
        queue += new
    return found
