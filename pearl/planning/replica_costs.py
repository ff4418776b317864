"""The costs of copies: the table of a graph, for a choice of replicas of it."""

from __future__ import annotations

from dataclasses import replace

from pearl.planning.costs import CostTable, Mode
from pearl.planning.replicas import Split, copy_name


def split_costs(costs: CostTable, split: Split) -> CostTable:
    """The table for the graph of a choice of replicas: each copy has the modes for its share.

    Pair terms hold for copies in proportion to their shares, so that all copies of two tasks in
    the same modes together add what the whole tasks would.
    """
    if not split.tasks:
        return costs
    whole = sum(split.shares)
    modes: list[Mode] = []
    for m in costs.modes:
        if not set(m.tasks) & set(split.tasks):
            modes.append(m)
        elif m.share is not None:
            modes += [
                replace(m, tasks=(copy_name(m.tasks[0], i),), share=None)
                for i, share in enumerate(split.shares)
                if share == m.share
            ]

    def copies(task: str) -> list[tuple[str, float]]:
        if task not in split.tasks:
            return [(task, 1.0)]
        return [(copy_name(task, i), share / whole) for i, share in enumerate(split.shares)]

    pairs = {
        ((a, a_key), (b, b_key)): extra * mine * other
        for ((first, a_key), (second, b_key)), extra in costs.pair_extra_s.items()
        for a, mine in copies(first)
        for b, other in copies(second)
    }
    return CostTable(costs.platform, tuple(modes), pairs)
