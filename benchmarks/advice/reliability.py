"""How often verdicts between two plans are right, by how sure they said they are.

Random specs of this host are planned and trained on one lane, a part of them held to torch. What is
known of them before is the data sheet of this CPU alone, as if nobody had timed a kernel on it: the
share of draws from its bands in which one is faster than the other is the verdict. All pairs count.
A verdict that says 70 % should be right in seven cases of ten. A plan stands in many pairs, so they
are not independent: of 446 pairs that were drawn first the lowest bin had 20, of which 35 % were
right.

Runs are kept in `results/advice_runs.json` after each, so that it goes on where it ended: measuring
takes a quarter of a minute a spec.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import pearl
from benchmarks.bars import Bar, Part
from benchmarks.estimators.plans import drawn, label, trained
from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.formats import check_format, latest
from pearl.planning.draws import Draws
from pearl.planning.estimated_costs import build_cost_table
from pearl.planning.plan_validation import plan_orders
from pearl.planning.plans import Plan, load_plan
from pearl.planning.problem import Problem
from pearl.planning.valuation import evaluate_samples
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl_estimators.host import calibrator

SEED, SPECS = 5, 60
KEPT = Path(__file__).parents[1] / "results" / "advice_runs.json"
RUN_S = 0.6
TORCH = 0.35
"""Share of the specs whose gradient steps are held to torch."""

BINS = ((0.5, 0.7), (0.7, 0.9), (0.9, 1.01))
ENOUGH, NEAR, OFF = 20, 1.5, 0.15
"""Verdicts a bin; the factor within which a pair counts as near; what a hit rate may be off."""


def given(number: int) -> dict[str, Any]:
    """Spec `number`."""
    random_ = random.Random(f"{SEED} {number}")
    spec = drawn(random_)
    spec["limits"] = {"max_lanes": 1}
    spec["algorithm"].pop("env_args", None)  # an environment of a set time says nothing of a CPU
    if ":" in str(spec["algorithm"]["env"]):
        spec["algorithm"]["env"] = "CartPole-v1"
    if random_.random() < TORCH:
        spec["limits"]["variants"] = {"learn": ["torch"]}
    return spec


def problem_of(system: System) -> Problem:
    """The problem of a system on this CPU, of which the data sheet alone is known."""
    graph = build_graph(system)
    sheets = tuple(replace(d, real=False) for d in system.platform.devices)
    platform = replace(system.platform, devices=sheets)
    return Problem(graph, build_cost_table(graph, platform, system.limits))


def rates(system: System, plan: Plan, draws: Draws) -> np.ndarray:
    """Env steps per second of a plan in each draw, by the data sheet of this CPU alone."""
    problem = problem_of(system)
    timed, orders, _ = plan_orders(plan, problem)
    return np.asarray(problem.graph.env_steps / evaluate_samples(timed, orders, draws).period_s)


def kept() -> dict[str, dict[str, Any]]:
    """The runs that were made before, by number of the spec, without those whose plans are of an
    earlier graph: they are made again where runs are measured."""
    if not KEPT.is_file():
        return {}
    content = json.loads(KEPT.read_text())
    check_format("benchmark result", content, str(KEPT))
    return {number: run for number, run in content["runs"].items() if is_of_today(run)}


def is_of_today(run: dict[str, Any]) -> bool:
    """Whether the plan of a run is one of the graph that its spec has now: graphs change."""
    try:
        system = pearl.load(run["spec"])
        problem = problem_of(system)
        plan_orders(load_plan(run["plan"]), problem)
    except SpecError:
        return False
    return True


def measured(system: System, plan: Plan) -> float:
    """Env steps per CPU-second; the first run only tells how long the second one has to be."""
    rate = plan.rates["env_steps_per_s"]
    for seconds in (0.2, 1.0, 5.0):
        try:
            rate = trained(system, plan, rate, seconds)
            break
        except RuntimeError:  # too few iterations for a steady stretch
            continue
    return trained(system, plan, rate, RUN_S)


def untimed(system: System) -> None:
    """Plans of this process time no kernel of the system."""
    missing = calibrator.missing_groups(build_graph(system).kernels)
    calibrator.skip_groups(missing, "the benchmark asks what a data sheet is worth")


def measure(most: int) -> dict[str, dict[str, Any]]:
    """The runs there are, and more until there are so many; a spec whose run is too short for a
    rate is left out."""
    runs = kept()
    for number in range(2 * most):
        if len(runs) >= most:
            break
        spec = given(number)
        old = runs.get(str(number))
        if old and old["spec"] == spec:
            continue
        system = pearl.load(spec)
        untimed(system)
        plan = pearl.plan(system)
        try:
            rate = measured(system, plan)
        except RuntimeError as error:
            print(f"  {number + 1}/{most} {label(spec)}: left out: {error}", flush=True)
            continue
        runs[str(number)] = {"spec": spec, "plan": plan.to_json(), "rate": rate}
        content = {"schema": latest("benchmark result"), "runs": runs}
        write_atomically(KEPT, (json.dumps(content, separators=(",", ":")) + "\n").encode())
        print(f"  {number + 1}/{most} {label(spec)}: {rate:,.0f}/s", flush=True)
    return runs


def verdicts(runs: dict[str, dict[str, Any]]) -> list[tuple[float, bool, float, tuple[str, str]]]:
    """(share of draws, right, measured factor, pair) of all pairs."""
    draws = Draws(1000, SEED)
    table = {n: rates(pearl.load(r["spec"]), load_plan(r["plan"]), draws) for n, r in runs.items()}
    found: list[tuple[float, bool, float, tuple[str, str]]] = []
    for a, b in itertools.combinations(table, 2):
        share = float(np.mean(table[a] > table[b]))
        first = share >= 0.5
        factor = runs[a]["rate"] / runs[b]["rate"]
        right = first == (factor > 1)
        found.append((max(share, 1 - share), right, max(factor, 1 / factor), (a, b)))
    return found


def run(quick: bool, data: Path | None) -> Part:
    """The reliability table. quick: of the runs that are kept alone."""
    runs = kept() if quick else measure(SPECS)
    found = verdicts(runs) if len(runs) > 1 else []
    rows, bars = [], []
    for low, high in BINS:
        mine = [v for v in found if low <= v[0] < high]
        if not mine:
            continue
        said, right = float(np.mean([v[0] for v in mine])), float(np.mean([v[1] for v in mine]))
        name = f"{100 * low:.0f} to {100 * min(high, 1):.0f} %"
        rows.append([name, str(len(mine)), f"{said:.0%}", f"{right:.0%}"])
        good = len(mine) >= ENOUGH and abs(right - said) <= OFF
        bars.append(
            Bar(
                f"verdicts of {name}: right, of {len(mine)}", f"{right:.0%}",
                f"{said:.0%} ± {OFF:.0%}", good,
            ),
        )  # fmt: skip
    near = sum(v[2] < NEAR for v in found)
    bars.append(Bar(f"pairs within {NEAR} x", str(near), f"{ENOUGH}", near >= ENOUGH))
    left_out = [f"{SPECS - len(runs)} of {SPECS} specs"] if len(runs) < SPECS else []
    columns = ["verdict says", "verdicts", "said, mean", "right"]
    values = {"seed": SEED, "verdicts": [[v[0], v[1], v[2], *v[3]] for v in found]}
    return Part("Verdicts between two measured plans", columns, rows, bars, left_out, values)
