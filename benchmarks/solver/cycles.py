"""Graphs whose iterations overlap around cycles: a part of `python -m benchmarks.solver`.

Periods of plans of `pearl.solve` over proven bounds, in CPU-seconds of this process and of those
below it, so that other processes change no figure (`clock.counted`). Code is warm.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Bar, Part, at_least, at_most
from benchmarks.solver.clock import counted
from benchmarks.solver.loops import (
    Loop,
    feedbacks,
    fused_pairs,
    nested,
    ring,
    rollout,
    small_cycles,
)
from pearl import solve
from pearl.graph import policy_iteration
from pearl.graph.cycle_ratio import howard
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.solvers.large.chain_bound import chain_bound
from pearl.solvers.model.search_space import search_spaces
from pearl.verification import check_plan

ASKED = {
    (200, 1): (1.01, 1.01, 1.04), (200, 4): (1.25, 1.14, 1.10), (200, 16): (1.22, 1.07, 1.06),
    (1000, 1): (1.005, 1.005, 1.005), (1000, 4): (1.40, 1.25, 1.12),
    (1000, 16): (1.42, 1.33, 1.15),
}  # fmt: skip
"""(tasks, tokens) of a ring on 8 devices → period over bound at most, for each of RATIOS."""

RATIOS = (0.1, 1.0, 3.0)
"""Copying over work."""

SECONDS = {200: 6.0, 1000: 10.0}
"""Tasks of a ring → time limit."""

NESTED: dict[str, Callable[[int], Loop]] = {
    "6 rings of 8, 1 and 4 tokens, ratio 0.3": lambda seed: nested(
        seed, 0.3, 1, 4, rings=6, each=8, devices=4
    ),
    "6 rings of 8, 2 and 6 tokens, ratio 1": lambda seed: nested(
        seed, 1.0, 2, 6, rings=6, each=8, devices=4
    ),
    "10 rings of 12, 2 and 6 tokens, ratio 0.3": lambda seed: nested(
        seed, 0.3, 2, 6, rings=10, each=12, devices=8
    ),
    "chain of 60, 9 back, ratio 0.3": lambda seed: feedbacks(
        seed, 0.3, tasks=60, backs=9, devices=4
    ),
    "chain of 60, 9 back, ratio 1": lambda seed: feedbacks(seed, 1.0, tasks=60, backs=9, devices=4),
    "chain of 150, 24 back, ratio 0.3": lambda seed: feedbacks(
        seed, 0.3, tasks=150, backs=24, devices=8
    ),
}
"""Nested loops → instance of a seed."""

NESTED_S, SMALL_S, PROVING_S = 8.0, 0.5, 20.0
"""Time limits of nested loops, of small graphs, and of the proofs of small graphs."""

ROLLOUT_S = {64: 1.0, 256: 1.0, 2_048: 1.0}
"""Steps of a rollout → time limit of its loop, which must be proved optimal."""

PAIRS, TOKENS, PAIRS_S, PAIRS_OVER = 10, (1, 2, 4, 6), 2.0, 1.05
"""Optional fusions of a ring, its tokens, the time limit, and period over bound at most."""

SEEDS = range(1, 6)


def solved(loop: Loop, seconds: float) -> tuple[Plan, float]:
    """A checked plan on one core, and its CPU-seconds."""
    graph, costs = loop
    with counted() as clock:
        began = clock()
        plan = solve(graph, costs, time_limit_s=seconds, workers=1)
        took = clock() - began
    check_plan(plan, Problem(graph, costs))
    return plan, took


def bound_s(loop: Loop, plan: Plan) -> float:
    """The better one of the plan's bound and that of chains."""
    if loop[0].fusions:
        return plan.bound_s
    (space,) = search_spaces(Problem(*loop))
    return max(plan.bound_s, chain_bound(space).bound_s)


def warm_up() -> None:
    """Load or compile all that is compiled."""
    for loop in ring(0, 1.0, 4, tasks=60), feedbacks(0, 0.3, tasks=40, backs=4, devices=4):
        solved(loop, 3.0)


def against_bounds(
    make: Callable[[int], Loop], seconds: float, seeds: range
) -> tuple[float, list[dict[str, Any]]]:
    """The median of period over bound, and what is kept of each seed."""
    kept = []
    for seed in seeds:
        loop = make(seed)
        plan, took = solved(loop, seconds)
        bound = bound_s(loop, plan)
        kept.append({"seed": seed, "period_s": plan.period_s, "bound_s": bound, "cpu_s": took})
    return statistics.median(k["period_s"] / k["bound_s"] for k in kept), kept


def run(quick: bool, data: Path | None) -> Part:
    warm_up()
    seeds = range(1, 2) if quick else SEEDS
    rows, bars, values = [], list[Bar](), dict[str, Any]()
    for (tasks, tokens), asked in ASKED.items():
        if quick and tasks > 200:
            continue
        for ratio, most in zip(RATIOS, asked, strict=True):
            name = f"ring of {tasks}, {tokens} tokens, ratio {ratio:g}"

            def make(seed: int, r: float = ratio, m: int = tokens, n: int = tasks) -> Loop:
                return ring(seed, r, m, tasks=n)

            worth, values[name] = against_bounds(make, SECONDS[tasks], seeds)
            bars.append(at_most(f"{name}: over bound", worth, most, "{:.4f}"))
            rows.append(_row(name, worth, values[name]))
    for name, make_nested in NESTED.items():
        worth, values[name] = against_bounds(make_nested, NESTED_S, seeds)
        rows.append(_row(name, worth, values[name]))
    for steps, limit_s in ROLLOUT_S.items():
        for lag in 0, 1:
            name = f"rollout of {steps} steps, lag {lag}"
            make = partial(rollout, steps=steps, lag=lag)
            worth, values[name] = against_bounds(make, limit_s, seeds)
            bars.append(at_most(f"{name}: over bound", worth, 1 + 1e-6, "{:.6f}"))
            rows.append(_row(name, worth, values[name]))
    for tokens in TOKENS:
        name = f"ring with {PAIRS} optional fusions, {tokens} tokens"
        make = partial(fused_pairs, pairs=PAIRS, tokens=tokens)
        worth, values[name] = against_bounds(make, PAIRS_S, seeds)
        bars.append(at_most(f"{name}: over bound", worth, PAIRS_OVER, "{:.4f}"))
        rows.append(_row(name, worth, values[name]))
    equal, proven = _small(range(10 if quick else 100))
    bars.append(at_least("small graphs: optimum, of the proven ones", equal / proven, 0.98))
    rows.append([f"small graphs: {equal} of {proven} proven", "", ""])
    times = howard_times()
    bars.append(at_least("policy iteration, compiled, times as fast", times, 20.0, "{:.1f}"))
    left_out = ["rings of 1,000, four of five seeds, 90 small graphs"] if quick else []
    columns = ["graph", "median over bound", "CPU, s"]
    return Part("graphs with cycles", columns, rows, bars, left_out, values)


def _row(name: str, worth: float, kept: list[dict[str, Any]]) -> list[str]:
    return [name, f"{worth:.4f}", f"{statistics.median(k['cpu_s'] for k in kept):.2f}"]


def _small(seeds: range) -> tuple[int, int]:
    """How many small graphs are solved to the optimum, of how many whose optimum is proven."""
    equal = proven = 0
    for seed in seeds:
        loop = small_cycles(seed)
        best, _ = solved(loop, PROVING_S)
        if best.status == "optimal":
            proven += 1
            equal += solved(loop, SMALL_S)[0].period_s <= best.period_s * (1 + 1e-6)
    return equal, proven


def howard_times() -> float:
    """How many times as fast policy iteration is compiled as in Python, on 200 nodes."""
    dice = random.Random(1)
    n = 200
    arcs = [(i, (i + 1) % n, dice.random(), int(i + 1 == n)) for i in range(n)]
    arcs += [(dice.randrange(n), dice.randrange(n), dice.random(), 1) for _ in range(2 * n)]
    arcs.sort()
    first = np.searchsorted([a[0] for a in arcs], range(n + 1)).tolist()
    heads, seconds, tokens = ([a[k] for a in arcs] for k in (1, 2, 3))

    def interpreted() -> None:
        policy = [-1] * n
        policy_iteration.start_policy(first, seconds, tokens, policy)
        policy_iteration.improve_policy(
            first, heads, seconds, tokens, policy, [0.0] * n, [0.0] * n, [0] * n, [0] * n, [0] * n
        )

    from pearl.graph import compiled_policy

    arrays = np.array(first), np.array(heads), np.array(seconds), np.array(tokens)
    scratch = np.zeros(n), np.zeros(n), np.zeros(n, int), np.zeros(n, int), np.zeros(n, int)

    def compiled() -> None:
        policy = np.full(n, -1)
        compiled_policy.start_policy(arrays[0], arrays[2], arrays[3], policy)
        compiled_policy.improve_policy(*arrays, policy, *scratch)

    assert howard(n, arcs)[0] > 0
    figures = []
    for call, count in ((interpreted, 20), (compiled, 400)):
        call()
        began = time.process_time()
        for _ in range(count):
            call()
        figures.append((time.process_time() - began) / count)
    return figures[0] / figures[1]
