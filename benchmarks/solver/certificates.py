"""Certificates: how many plans called optimal get one, and what it takes to make and check it.

Random problems of every shape for both steady objectives, the rings with chords of `speed`, and
RL loops of language models from published tables. Seconds are of the CPU, on one core. The check
reads the certificate from its JSON.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Part, at_most
from benchmarks.solver.clock import counted
from benchmarks.solver.instances import small
from benchmarks.solver.placement import ppo
from examples.llm_placement import read
from pearl import verify
from pearl.errors import InfeasibleError
from pearl.planning.problem import Problem
from pearl.solvers.certificate import certify
from pearl.solvers.solver import solve_problem
from pearl.testing.graphs import SHAPES, random_limited
from pearl.verification import check_plan

RANDOM, RINGS, QUICK = 500, 50, 10
"""Problems of each class; of every class with --quick."""

OBJECTIVES = ("throughput", "power_efficiency")

SECONDS = 60.0
"""CPU-seconds of a solve at most."""

MEDIAN_S = 0.010
"""Asked of random problems: median CPU-seconds to make a certificate."""

RING_S, RING_CHECK_S, RING_BYTES = 0.2, 0.1, 100_000
"""Asked of rings: median CPU-seconds to make and to check a certificate, and its median size."""


def random_problems(count: int) -> Iterator[Problem]:
    for k in range(count):
        graph, costs, limits = random_limited(k // 2, shape=SHAPES[k // 2 % len(SHAPES)])
        yield Problem(graph, costs, limits, OBJECTIVES[k % 2])


def rings(count: int) -> Iterator[Problem]:
    for seed in range(count):
        yield Problem(*small(seed))


def placements(data: Path | None, count: int) -> Iterator[Problem]:
    """Published loops with times where their folder is given, and random PPO loops."""
    folder = data / "rl_placement" if data else Path()
    two = {"chain": ["rollout", "update_actor"]}
    published: dict[str, list[dict[str, Any]]] = {
        "rlinf_libero_4": [{}],
        "rlinf_reasoning_128": [{"firings": k} for k in (1, 4, 64, 512)],
        "verl_qwen2.5_7b_h20_one_step_off": [{"gpus": 16, "lag": k} for k in (0, 1)],
        "verl_qwen2.5_7b_h20_fully_async": [
            {"gpus": gpus, "lag": lag, **two} for gpus in (64, 128) for lag in (0, 1)
        ],
    }
    for name, changes in published.items():
        file = folder / f"{name}.json"
        for change in changes if file.is_file() else ():
            given = read({**json.loads(file.read_text()), **change})
            yield Problem(given["graph"], given["costs"], given["limits"])
    for seed in range(count):
        given = read(ppo(seed))
        yield Problem(given["graph"], given["costs"], given["limits"])


def certified(problem: Problem) -> tuple[bool, float, float, int] | None:
    """Whether a plan is certified, CPU-seconds to make and check the certificate, and its bytes;
    None where no plan is proved optimal. A solve checks the value of its plan in any case, so this
    check counts for the second figure alone."""
    try:
        with counted():
            plan = solve_problem(problem, time_limit_s=SECONDS, workers=1, certify=False)
    except InfeasibleError:
        return None
    if plan.status != "optimal":
        return None
    value = check_plan(plan, problem)
    began = time.process_time()
    plan = certify(plan, checked=value)
    made = time.process_time()
    text = json.dumps(plan.certificate)
    plan, written = replace(plan, certificate=json.loads(text)), time.process_time()
    p = problem
    found = verify(plan, p.graph, p.costs, p.limits, objective=p.objective)
    checked = time.process_time()
    proved = plan.certified == "optimal" and found.gap <= 1.01e-6
    return proved, made - began, checked - written, len(text)


def run(quick: bool, data: Path | None) -> Part:
    certified(next(rings(1)))  # loads what is imported on use
    classes: dict[str, Iterator[Problem]] = {
        "random, every shape": random_problems(QUICK if quick else RANDOM),
        "rings, 8 × 6 × 4": rings(QUICK if quick else RINGS),
        "loops of language models": placements(data, QUICK),
    }
    rows: list[list[str]] = []
    bars: list[Bar] = []
    values = {}
    for name, problems in classes.items():
        found = [each for p in problems if (each := certified(p))]
        share = f"{sum(proved for proved, *_ in found)} of {len(found)}"
        bars.append(Bar(f"{name}: certified", share, "all", all(proved for proved, *_ in found)))
        medians, figures = [], []
        for column in zip(*found, strict=True):
            ranked = sorted(column)
            medians.append(statistics.median(ranked))
            figures.append([medians[-1], ranked[int(0.9 * (len(ranked) - 1))], ranked[-1]])
        seconds = [f"{1e3 * s:.1f}" for row in figures[1:3] for s in row]
        rows.append([name, share, *seconds, *(f"{size:,.0f}" for size in figures[3])])
        values[name] = {"certified": share, "make_s": figures[1], "check_s": figures[2]}
        if name.startswith("random"):
            bars.append(at_most(f"{name}: median to make", medians[1], MEDIAN_S, "{:.3f} s"))
        if name.startswith("rings"):
            bars.append(at_most(f"{name}: median to make", medians[1], RING_S, "{:.3f} s"))
            bars.append(at_most(f"{name}: median to check", medians[2], RING_CHECK_S, "{:.3f} s"))
            bars.append(at_most(f"{name}: median size", medians[3], RING_BYTES, "{:,.0f} bytes"))
    columns = ["problems", "certified", "make, ms: median", "90 %", "worst", "check, ms: median"]
    columns += ["90 %", "worst", "bytes: median", "90 %", "worst"]
    left_out = [f"{RANDOM - QUICK} random problems, {RINGS - QUICK} rings"] if quick else []
    if data is None:
        left_out.append("published loops: give their folder with --data or PEARL_DATA")
    return Part("certificates of plans called optimal", columns, rows, bars, left_out, values)
