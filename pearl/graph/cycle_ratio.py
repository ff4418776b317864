"""The maximum cycle ratio of arcs by Howard's policy iteration, in Python or compiled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pearl.graph import policy_iteration
from pearl.time_limit import look, watched

Arc = tuple[int, int, float, int]
"""(src node, dst node, seconds, tokens)."""

COMPILED_ARCS, LOADING_ARCS = 400, 20_000
"""Least arcs for which policy iteration runs compiled: if numba is loaded already, and if it is not
(assumed: loading numba takes about a second)."""


def runs_compiled(arcs: int, loading_arcs: int = LOADING_ARCS) -> bool:
    """Return whether loops over so many arcs run compiled. loading_arcs: as LOADING_ARCS."""
    return arcs >= (COMPILED_ARCS if "numba" in sys.modules else loading_arcs)


def howard(n: int, arcs: Sequence[Arc]) -> tuple[float, list[int]]:
    """Compute `max_cycle_ratio` by policy iteration (`policy_iteration`), unchecked: a cycle of
    positive seconds whose tokens sum to 0 or less gives (inf, cycle)."""
    part = CyclicPart.of(n, arcs)
    ratio, critical = part.find_critical([arcs[e][2] for e in part.arcs])
    return ratio, [arcs[e][0] for e in critical]


@dataclass(frozen=True)
class CyclicPart:
    """The arcs of a graph that lead to cycles, sorted by their source.

    first: node → its first arc, and the number of arcs. arcs, heads, tokens: number of each arc in
    the graph, the node it leads to, and its tokens.
    """

    first: list[int]
    arcs: list[int]
    heads: list[int]
    tokens: list[int]

    @classmethod
    def of(cls, n: int, arcs: Sequence[Arc]) -> CyclicPart:
        """Return the part of a graph of n nodes."""
        into: list[list[int]] = [[] for _ in range(n)]
        degree = [0] * n
        for s, d, _, _ in watched(arcs):
            into[d].append(s)
            degree[s] += 1
        dead = [u for u in range(n) if degree[u] == 0]
        for u in watched(dead):
            for s in into[u]:
                degree[s] -= 1
                if degree[s] == 0:
                    dead.append(s)
        out: list[list[int]] = [[] for _ in range(n)]
        for e, (s, d, _, _) in enumerate(watched(arcs)):
            if degree[s] > 0 and degree[d] > 0:
                out[s].append(e)
        first, kept = [0], list[int]()
        for numbers in out:
            kept += numbers
            first.append(len(kept))
        return cls(first, kept, [arcs[e][1] for e in kept], [arcs[e][3] for e in kept])

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        return np.array(self.first), np.array(self.heads), np.array(self.tokens)

    def compiles(self, loading_arcs: int = LOADING_ARCS) -> bool:
        """Return whether policy iteration runs compiled here. loading_arcs: as LOADING_ARCS."""
        return runs_compiled(len(self.heads), loading_arcs)

    def find_critical(
        self,
        seconds: Sequence[float],
        *,
        compiled: bool | None = None,
        policy: NDArray[np.int64] | None = None,
    ) -> tuple[float, list[int]]:
        """Return the maximum cycle ratio, and the numbers in the graph of the arcs of a cycle that
        attains it.

        Arguments:
            seconds: of each of these arcs.
            compiled: run compiled; None: as `compiles` says.
            policy: node → place of the arc that the search begins with; -1 for none. The search
                writes its last policy there, a good start for similar seconds. Shape (nodes,).
        """
        if not self.heads:
            return 0.0, []
        look()
        n = len(self.first) - 1
        policy = np.full(n, -1) if policy is None else policy
        if self.compiles() if compiled is None else compiled:
            from pearl.graph import compiled_policy

            first, heads, tokens = self._arrays
            times, nodes = np.array(seconds), np.zeros(n, np.int64)
            scratch = np.zeros(n), np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
            compiled_policy.start_policy(first, times, tokens, policy)
            best, length = compiled_policy.improve_policy(
                first, heads, times, tokens, policy, *scratch, nodes
            )
            cycle = nodes[:length].tolist()
        else:
            own, cycle = policy.tolist(), [0] * n
            policy_iteration.start_policy(self.first, seconds, self.tokens, own)
            best, length = policy_iteration.improve_policy(
                self.first, self.heads, seconds, self.tokens, own,
                [0.0] * n, [0.0] * n, [0] * n, [0] * n, cycle,
            )  # fmt: skip
            policy[:], cycle = own, cycle[:length]
        return float(best), [self.arcs[policy[u]] for u in cycle]
