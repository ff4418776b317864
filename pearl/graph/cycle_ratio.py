"""The maximum cycle ratio of arcs by Howard's policy iteration, in Python or compiled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pearl.graph import policy_iteration
from pearl.time_limit import look

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

    first: Sequence[int]
    arcs: Sequence[int]
    heads: Sequence[int]
    tokens: Sequence[int]

    @classmethod
    def of(cls, n: int, arcs: Sequence[Arc]) -> CyclicPart:
        """Return the part of a graph of n nodes."""
        look()
        loops: Any = policy_iteration
        compiled = runs_compiled(len(arcs))
        if compiled:
            from pearl.graph import compiled_policy as loops
        tails, heads, _, tokens = zip(*arcs, strict=True) if arcs else ((),) * 4
        rows: list[Any] = [tails, heads, tokens, [0] * (n + 1), [0] * len(arcs)]
        rows += [[0] * (n + 1), [0] * len(arcs), [0] * n, [0] * n]
        if compiled:
            rows = [np.array(row, np.int64) for row in rows]
        tails, heads, tokens, first, kept, *scratch = rows
        kept = kept[: loops.sort_cyclic(tails, heads, first, kept, *scratch)]
        if compiled:
            return cls(first, kept, heads[kept], tokens[kept])
        return cls(first, kept, [heads[e] for e in kept], [tokens[e] for e in kept])

    @cached_property
    def _arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        return np.asarray(self.first), np.asarray(self.heads), np.asarray(self.tokens)

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
        if len(self.heads) == 0:
            return 0.0, []
        look()
        n = len(self.first) - 1
        policy = np.full(n, -1) if policy is None else policy
        if self.compiles() if compiled is None else compiled:
            from pearl.graph import compiled_policy

            first, heads, tokens = self._arrays
            times, nodes = np.asarray(seconds, np.float64), np.zeros(n, np.int64)
            scratch = np.zeros(n), np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
            compiled_policy.start_policy(first, times, tokens, policy)
            best, length = compiled_policy.improve_policy(
                first, heads, times, tokens, policy, *scratch, nodes
            )
            arcs = np.asarray(self.arcs)[policy[nodes[:length]]]
            return float(best), arcs.tolist()
        own, cycle = policy.tolist(), [0] * n
        policy_iteration.start_policy(self.first, seconds, self.tokens, own)
        best, length = policy_iteration.improve_policy(
            self.first, self.heads, seconds, self.tokens, own,
            [0.0] * n, [0.0] * n, [0] * n, [0] * n, cycle,
        )  # fmt: skip
        policy[:] = own
        return float(best), [int(self.arcs[policy[u]]) for u in cycle[:length]]
