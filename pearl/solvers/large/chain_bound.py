"""A bound of the period from chains and rings of classes, and the assignments that attain the
bound.

Take prices λ of cycles and μ of lanes and links that add up to 1, and prices ν of memory. No plan
has a period below the minimum, over all assignments, of Σ λ · (seconds of a cycle / its tokens)
+ Σ μ · load + Σ ν · (memory − capacity) (Lagrangian duality; Geoffrion 1974). Only copies between
neighbours of a chain or ring count, so dynamic programming finds the minimum exactly
(`chain_paths`; Viterbi 1967). Cutting planes in a box of variable size improve the prices (Marsten,
Hogan and Blankenship 1975).

`chain_bound(space)` returns the bound, which is proven for every plan of the search space, and the
devices of the assignments that attain the minima. The graph may be any graph: the bound is strong
if chains or rings carry most messages. The function loads compiled code. Steps are counted, not
timed: a ring of 1,000 classes on 8 devices takes some 30 steps, 0.4 CPU-seconds on 2 x AMD EPYC
    (Zen 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pearl.solvers.large.chain_program import CYCLES, ChainProgram, Floats, Ints, Prices
from pearl.solvers.model.search_space import SearchSpace
from pearl.time_limit import look

STEPS = 60
"""Largest number of steps of the prices: rings of 200 to 1,000 classes on 8 devices take 20 to
45."""

RADIUS = 0.2
"""Half the side of the first box around the prices, which add up to 1 (assumed)."""

ENOUGH = 1e-5
"""The steps end if the bound can rise by at most this share."""

CUTS = 100
"""Number of earlier values that a step compares with (assumed)."""

SAFE = 1e-9
"""Share subtracted from the bound for rounding."""


@dataclass(frozen=True)
class ChainBound:
    """A bound, with its assignments.

    bound_s: no plan of the search space has a shorter period.
    devices: (period in seconds, device number of each class) of the assignments of all steps that
        fit into the memory of the devices, by rising period. The period is the largest ratio or
        load that the bound counts.
    """

    bound_s: float
    devices: tuple[tuple[float, Ints], ...]


def chain_bound(space: SearchSpace, steps: int = STEPS) -> ChainBound:
    """Return the bound of a search space, with at most `steps` dynamic programs.

    Raises:
        OutOfTimeError: the time limit passed.
    """
    return climb(ChainProgram(space), steps)


def climb(program: ChainProgram, steps: int = STEPS) -> ChainBound:
    """Improve the prices of a program: each step solves the linear program of the values known so
    far in a box around the best prices."""
    from scipy.optimize import linprog

    bound = max(program.ratio_s(None), program.crossing_s())
    resources, tight = program.priced, program.tight
    count = len(program.cycles) + int(resources.sum())
    center = np.concatenate([np.full(count, 1 / count), np.zeros(int(tight.sum()))])
    at, best, radius, top = center, -math.inf, RADIUS, math.inf
    slopes: list[Floats] = []
    found: dict[bytes, tuple[float, Ints]] = {}
    for _ in range(steps):
        look()
        value, devices = program.cheapest(_prices(program, at))
        known = len(program.cycles)
        if known < CYCLES:
            program.ratio_s(devices)
        for _ in range(len(program.cycles) - known):
            # A cycle's ratio is at least 0, so the earlier values stay valid without it.
            at, center = np.insert(at, known, 0.0), np.insert(center, known, 0.0)
            slopes = [np.insert(slope, known, 0.0) for slope in slopes]
            count += 1
        ratios, loads, memory = program.uses(devices)
        slopes.append(np.concatenate([ratios, loads[resources], memory[tight] - 1.0]))
        if (memory[tight] <= 1).all():
            found[devices.tobytes()] = max(ratios.max(initial=0.0), loads.max()), devices
        if value > best:
            radius *= 1.5 if value - best > 0.5 * (top - best) else 1.0
            best, center = value, at
        else:
            radius *= 0.6
        rows = np.array(slopes[-CUTS:])
        width = np.full(len(center), radius)
        width[count:] *= max(best, bound)  # the unit of memory prices is seconds
        low, high = np.maximum(0.0, center - width), center + width
        solved = linprog(
            np.append(np.zeros(len(center)), -1.0),
            np.hstack([-rows, np.ones((len(rows), 1))]),
            np.zeros(len(rows)),
            [[1.0] * count + [0.0] * (len(center) - count + 1)],
            [1.0],
            [*zip(low, high, strict=True), (None, None)],
        )
        if solved.x is None:
            break
        at, top = np.maximum(0.0, solved.x[:-1]), float(solved.x[-1])
        if top - best <= ENOUGH * best or radius < ENOUGH:
            break
    ranked = sorted(found.values(), key=lambda f: f[0])
    return ChainBound(max(bound, best) * (1 - SAFE), tuple(ranked))


def _prices(program: ChainProgram, point: NDArray[np.float64]) -> Prices:
    """Build prices from a vector; prices of cycles and resources are scaled to a sum of 1."""
    cycles, priced = len(program.cycles), int(program.priced.sum())
    resources, memory = np.zeros(len(program.priced)), np.zeros(len(program.tight))
    resources[program.priced] = point[cycles : cycles + priced]
    memory[program.tight] = point[cycles + priced :]
    whole = point[: cycles + priced].sum()
    return Prices(point[:cycles] / whole, resources / whole, memory / whole)
