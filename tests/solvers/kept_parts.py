"""What each part of the solver makes of small problems, as texts.

They are kept in `tests/solvers/parts`, so that a change of any number is seen:
`python -m tests.solvers.kept_parts` writes them anew. It writes nothing of a problem for which a
program and enumeration disagree, or for which a search finds other periods than all orders have.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pearl.errors import InfeasibleError
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, TimedGraph, build_timed_graph
from pearl.solvers.methods.enumeration import every_space
from pearl.solvers.methods.exhaustive import _every_order
from pearl.solvers.model import cost_floor
from pearl.solvers.model.dag_instance import (
    build_instance,
    fastest,
    least_s,
    makespan_spaces,
)
from pearl.solvers.model.list_schedule import Schedule, build_schedule
from pearl.solvers.model.result import Candidate
from pearl.solvers.model.search_space import SearchSpace, cost_of, search_spaces
from pearl.solvers.orders import lane_sequencing
from pearl.solvers.orders.list_orders import (
    in_turn,
    listed_orders,
    shifted_orders,
)
from pearl.solvers.orders.rings import Rings, to_arrays
from pearl.solvers.orders.search import modulo_orders
from pearl.solvers.period.order_cuts import conflict_units, cut_period
from pearl.solvers.period.period_form import PeriodForm
from pearl.solvers.period.slack_minimisation import fewest_tokens
from pearl.solvers.period.symmetry import find_orbits
from pearl.solvers.period.tie_breaking import fewest_lanes
from pearl.testing.graphs import random_limited
from tests.graphs import least_by_enumeration, least_by_program
from tests.solvers.test_lane_rules import pool

FOLDER = Path(__file__).parent / "parts"

PAYERS = ("link", "lane", "nobody")


def problem(seed: int) -> Problem:
    """A problem of `random_limited` with links of all payers, lane terms, and memory of units;
    from 1000 on, one of a `pool` of units."""
    if seed >= 1000:
        return Problem(*pool(seed, firings=2))
    graph, costs, limits = random_limited(seed, most_tasks=4, most_devices=3)
    r = random.Random(seed)
    links = tuple(replace(k, paid_by=r.choice(PAYERS)) for k in costs.platform.links)
    roomy = tuple(
        replace(d, unit_memory_bytes=r.choice([math.inf, 9.0])) for d in costs.platform.devices
    )
    names = [t.name for t in graph.tasks]
    pairs = [(a, b) for a in names for b in names if a != b]
    extra = {p: r.uniform(1e-7, 1e-6) for p in r.sample(pairs, r.choice([0, 1]))}
    apart = tuple(r.sample(pairs, r.choice([0, 0, 1])))
    modes = tuple(replace(m, unit_bytes=r.choice([0.0, 2.0, 4.0])) for m in costs.modes)
    platform = replace(costs.platform, links=links, devices=roomy)
    whole, part = (extra, {}) if seed % 2 else ({}, extra)
    costs = replace(
        costs, platform=platform, modes=modes, apart_extra_s=whole, shared_extra_s=part
    )
    objective = r.choice(["throughput", "power_efficiency"])
    limits = replace(
        limits,
        apart=apart,
        power_w=r.choice([None, None, 200.0]),
        period_s=r.choice([None, 1.0]),
    )
    return Problem(graph, costs, limits, objective)


def text(value: Any) -> str:
    """A value in short, floats with nine digits."""
    if isinstance(value, float | np.floating):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list | np.ndarray):
        return "(" + " ".join(map(text, value)) + ")"
    return str(value)


def some_assignment(space: SearchSpace, dice: random.Random) -> Assignment:
    """An assignment within the rules of a space; the first tries are at random."""
    for turn in range(200):
        modes, lanes = [], []
        for members in space.classes:
            common = set.intersection(*({m.device for m in space.options[u]} for u in members))
            device = dice.choice(sorted(common))
            for u in members:
                at = [m for m in space.options[u] if m.device == device]
                modes.append((u, dice.choice(at)))
                lanes.append((u, dice.randrange(space.lanes[device]) if turn < 150 else 0))
        chosen = tuple(m for _, m in sorted(modes, key=lambda pair: pair[0]))
        a = Assignment(space.expansion, space.costs, chosen, tuple(n for _, n in sorted(lanes)))
        if not space.violates_coupling(a):
            return a
    raise AssertionError(space)


def spaces_of(seed: int) -> list[SearchSpace]:
    """The first and the last search space of a problem."""
    found = search_spaces(problem(seed))
    return [found[0], found[-1]] if len(found) > 1 else found


def space_lines(seed: int) -> Iterable[str]:
    """What the limits leave: options, classes, memory, lanes; windows and arcs of the expansion."""
    found = search_spaces(problem(seed))
    yield f"spaces {len(found)}"
    for space in spaces_of(seed):
        x = space.expansion
        yield f"units {text(x.units)} slack {text([e.slack for e in x.graph.edges])}"
        for unit, options in zip(x.units, space.options, strict=True):
            yield f"  {text(unit)}: {text([(*m.key, m.share) for m in options])}"
        yield f"  classes {text(space.classes)} bytes {text(space.memory_bytes)}"
        yield f"  capacity {text(dict(space.capacity_bytes))} lanes {text(dict(space.lanes))}"
        yield f"  of units {text(dict(space.unit_capacity_bytes))} most {space.max_lanes}"
        yield f"  apart {text(space.apart)} couple {space.lanes_couple} serial {text(space.serial_s)}"
        yield f"  pairs {text(space.pair_terms)} lanes {text(space.lane_terms)}"
        yield f"  on {text([{d: len(m) for d, m in row.items()} for row in space.on_device])}"
        yield f"  nodes {text(x.nodes)} arcs {text(x.arcs)}"
        for w in x.windows:
            yield f"  window {text((w.first, w.last, w.begin, w.end, w.firings))}"


def program_lines(seed: int) -> Iterable[str]:
    """The rows of the period form, alone and with a known plan and a cut."""
    asked = problem(seed)
    for space in spaces_of(seed):
        kept = [list(range(len(o))) for o in space.options]
        yield f"orbits {text(find_orbits(space, kept))}"
        a = some_assignment(space, random.Random(seed))
        period_s = build_timed_graph(a).order_bound_s
        cost, paced_s = cost_of(asked, a, period_s)
        known = Candidate(a, lane_sequencing.OrderResult({}, period_s, 0.0), paced_s, cost)
        for start in (None, known):
            form = PeriodForm(space, asked, start if cost < math.inf else None)
            if start:
                read = form._read(np.random.default_rng(seed).random(len(form.linear.upper)))
                form.cut(read)
                some = [(u, m.estimate) for u, m in enumerate(read.modes) if u % 2 == 0]
                form.cut(read, {u: (e.latency_s, 0.9 * e.occupancy_s) for u, e in some})
                yield f"read {text([m.key for m in read.modes])} {text(read.lanes)}"
            rows: list[list[str]] = [[] for _ in form.linear.low]
            program = form.linear
            for row, v, c in zip(program.rows, program.columns, program.values, strict=True):
                rows[row].append(f"{text(c)}·{v}")
            yield f"minimise {text(form.objective_terms)}"
            box = zip(program.lower, program.upper, program.integer, strict=True)
            yield f"  box {text([(low, high, int(whole)) for low, high, whole in box])}"
            for low, terms, high in zip(program.low, rows, program.high, strict=True):
                yield f"  {text(low)} <= {' '.join(terms)} <= {text(high)}"


def floor_lines(seed: int) -> Iterable[str]:
    """Cheap bounds."""
    for space in spaces_of(seed):
        quick = fastest(space)
        yield f"fastest {text(quick)}"
        yield f"cycles {text(cost_floor._cycles_s(space, quick))}"
        yield f"work {text(cost_floor._work_s(space, quick))}"
        yield f"links {text(cost_floor._links_s(space, quick))}"
        for objective in ("throughput", "power_efficiency"):
            yield text(cost_floor.cost_floor(space, objective, programs=False))


def schedule_lines(seed: int) -> Iterable[str]:
    """An instance of one iteration, and schedules at places drawn among those offered."""
    asked = problem(seed)
    limits = replace(asked.limits, power_w=None, period_s=None, min_throughput_per_s=None)
    for space in makespan_spaces(replace(asked, limits=limits))[:2]:
        it = build_instance(space)
        yield f"before {text(it.before)} turn {text(it.turn)} nexts {text(it.nexts)}"
        yield f"after {text(it.after)} waits {text(it.waits)} order {text(it.order)}"
        yield f"  delay {text([it.mean_delay_s(0, u, 5e4) for u in range(len(space.options))])}"
        yield f"  longest path {text(least_s(it, -math.inf))}"
        for most in (math.inf, 1):
            for draw in range(2):
                dice = random.Random(draw)
                made = Schedule(it, most)
                for v in it.order:
                    places = list(made.places(v))
                    if not places:
                        yield f"  {v} nowhere"
                        break
                    ends = [made.at(v, place)[1] for place in places]
                    place = dice.choice(places)
                    end = made.put(v, place)
                    yield f"  {v} of {text(places)} at {text(ends)}: {text(place)} {text(end)}"
                else:
                    found = made.to_candidate()
                    yield f"  start {text(made.start)} end {text(made.end_s())} {text(made.sent)}"
                    yield f"  {valued(found)}"
                    places = [place for place in made.taken if place]
                    again = build_schedule(it, [-float(v) for v in range(len(it.order))], places)
                    yield f"  built {text(again.start)}"


def valued(found: Candidate | None) -> str:
    if found is None:
        return "none"
    a, orders = found.assignment, found.ordered.orders
    modes = [(*m.key, lane) for m, lane in zip(a.modes, a.lanes, strict=True)]
    slack = [e.slack for e in a.expansion.graph.edges]
    return f"{text(modes)} {text(slack)} {text(dict(orders))} {text(found.period_s)} {text(found.cost)}"


def timed(seed: int) -> list[TimedGraph]:
    dice = random.Random(seed)
    return [build_timed_graph(some_assignment(space, dice)) for space in spaces_of(seed)]


def order_lines(seed: int) -> Iterable[str]:
    """Orders of the lanes of an assignment by each of the searches."""
    for timing in timed(seed):
        listed = listed_orders(timing, math.inf)
        shifted = shifted_orders(timing, listed[0])
        yield f"in turn {text(in_turn(timing))} bound {text(timing.order_bound_s)}"
        yield f"listed {text(dict(listed[0]))} {text(listed[1])}"
        yield f"shifted {text(dict(shifted)) if shifted else None}"
        for nodes in (1, 3, 60):
            for below_s in (math.inf, 1.05 * timing.order_bound_s):
                found = lane_sequencing._search(timing, *listed, below_s, math.inf, nodes)
                yield f"  in {nodes}: {text(dict(found[0]))} {text(found[1:])}"
        best = lane_sequencing.best_orders(timing, nodes=20)
        yield f"  best {text(dict(best.orders))} {text((best.period_s, best.bound_s))}"
        yield f"  {[lane_sequencing.no_order_below(timing, s * best.period_s, 20) for s in (0.9, 1, 1.1)]}"


def schedule_of_modulo(seed: int) -> Iterable[str]:
    """Modulo schedules, their rings, and what swaps make of them."""
    for timing in timed(seed):
        arrays = to_arrays(timing)
        yield f"arrays {text(arrays)}"
        for noise in (0.0, 0.1):
            rings = Rings(arrays, np.array([seed], np.uint64))
            for growth in (1.0, 1.1, 1.5, 3.0):
                target_s = growth * timing.order_bound_s
                start = rings.fit(target_s, noise)
                if start is None:
                    yield f"  none of {text(target_s)}"
                    continue
                made = rings.rings_of(start, target_s)
                better, period_s = rings.swapped(made, 30, timing.order_bound_s)
                yield f"  {text(start)} {text(made)} swapped {text(better)} {text(period_s)}"
        orders, period_s = modulo_orders(timing, ({}, math.inf), effort=1e-4)
        yield f"  {text(dict(orders))} {text(period_s)}"


def tie_lines(seed: int) -> Iterable[str]:
    """Slack and lanes that a plan does not need, and the units that are to blame for its orders."""
    asked = problem(seed)
    for timing, space in zip(timed(seed), spaces_of(seed), strict=True):
        a = timing.assignment
        ordered = lane_sequencing.best_orders(timing, nodes=20)
        cost, paced_s = cost_of(asked, a, ordered.period_s)
        found = Candidate(a, ordered, paced_s, cost)
        yield f"given {valued(found)}"
        yield f"slack {valued(fewest_tokens(found, asked.limits))}"
        yield f"lanes {valued(fewest_lanes(found, asked))}"
        for objective in ("throughput", "power_efficiency"):
            worth = cut_period(space, a, objective, cost if cost < math.inf else paced_s)
            blamed = conflict_units(space, a, worth)
            yield f"blamed {text(blamed)} {text([worth(range(n)) for n in range(len(a.modes) + 1)])}"


PARTS: dict[str, Callable[[int], Iterable[str]]] = {
    "spaces": space_lines,
    "programs": program_lines,
    "floors": floor_lines,
    "schedules": schedule_lines,
    "orders": order_lines,
    "modulo": schedule_of_modulo,
    "ties": tie_lines,
}
SEEDS = {
    "programs": (0, 6, 7, 10, 20, 34, 1003),
    "ties": (0, 3, 10, 16, 24, 30, 33, 34, 36, 38, 1002, 1003, 1005),
}
"""Part → its problems; of the other parts all of `ALL`."""

ALL = (0, 1, 6, 10, 16, 20, 29, 33, 34, 38, 1002, 1003)


def made(part: str) -> str:
    lines = (
        line for seed in SEEDS.get(part, ALL) for line in (f"# {seed}", *PARTS[part](seed))
    )
    return "\n".join(lines) + "\n"


def check(seed: int) -> None:
    """Compare what is kept of a problem with enumeration, of all spaces and of all orders."""
    asked = problem(seed)
    expected = least_by_enumeration(every_space(asked), asked)
    found = least_by_program(search_spaces(asked), asked)
    assert math.isclose(found, expected, rel_tol=1e-6), (seed, found, expected)
    for timing in timed(seed):
        every = _every_order(timing)
        if every is not None:
            best_s = lane_sequencing.best_orders(timing).period_s
            assert math.isclose(best_s, every.period_s, rel_tol=1e-9), seed


def main() -> None:
    for seed in dict.fromkeys((*ALL, *(seed for seeds in SEEDS.values() for seed in seeds))):
        check(seed)
    FOLDER.mkdir(exist_ok=True)
    for part in PARTS:
        (FOLDER / f"{part}.txt").write_text(made(part))


if __name__ == "__main__":
    main()
