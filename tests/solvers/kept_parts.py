"""What each part of the solver makes of small problems, as texts.

They are kept in `tests/solvers/parts`, so that a change of any number is seen:
`python -m tests.solvers.kept_parts` writes them anew. It writes nothing of a problem for which a
program and enumeration disagree, or for which a search finds other periods than all orders have.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl.graph.period import expand
from pearl.planning.costs import CostTable, Mode
from pearl.planning.draws import Draws
from pearl.planning.plan_builder import Proof, build_plan
from pearl.planning.problem import Problem
from pearl.planning.timing import Assignment, TimedGraph, build_timed_graph
from pearl.solvers import robust
from pearl.solvers.first_plan import first_plan
from pearl.solvers.known_plan import translate_plan
from pearl.solvers.methods.enumeration import every_space
from pearl.solvers.model import cost_floor
from pearl.solvers.model.dag_instance import build_instance, fastest, least_s, makespan_spaces
from pearl.solvers.model.list_schedule import Schedule, build_schedule
from pearl.solvers.model.method import Search
from pearl.solvers.model.result import Candidate, Outcome
from pearl.solvers.model.search_space import SearchSpace, cost_of, search_spaces, slack_choices
from pearl.solvers.orders import lane_sequencing
from pearl.solvers.orders.list_orders import in_turn, listed_orders, shifted_orders
from pearl.solvers.orders.rings import Rings, to_arrays
from pearl.solvers.orders.search import modulo_orders
from pearl.solvers.period import slack_minimisation
from pearl.solvers.period.order_cuts import conflict_units, cut_period
from pearl.solvers.period.period_form import PeriodForm
from pearl.solvers.period.slack_minimisation import fewest_of_all, fewest_tokens
from pearl.solvers.period.symmetry import find_orbits
from pearl.solvers.period.tie_breaking import fewest_lanes, fewest_watts
from pearl.solvers.robust import least_regret
from pearl.solvers.under_draws import Scale
from pearl.testing import exhaustive
from pearl.testing.exhaustive import _every_order
from pearl.testing.graphs import random_limited
from pearl.time_limit import OutOfTimeError
from pearl_estimators import Estimate
from tests.graphs import banded, least_by_enumeration, least_by_program
from tests.solvers.test_lane_rules import pool
from tests.solvers.test_orders import ring

FOLDER = Path(__file__).parent / "parts"

PAYERS = ("link", "lane", "nobody")


def problem(seed: int) -> Problem:
    """A problem of `random_limited` with links of all payers, lane terms, and memory of units;
    from 1000 on, one of a `pool` of units; from 2000 on, in whole seconds, where many are equal;
    from 4000 on, without cycles."""
    if 1000 <= seed < 2000:
        return Problem(*pool(seed, firings=2))
    graph, costs, limits = random_limited(seed % 1000, most_tasks=4, most_devices=3)
    if 2000 <= seed < 3000:
        costs = in_whole_seconds(costs)
    if seed >= 4000:
        graph = replace(graph, edges=tuple(e for e in graph.edges if not e.tokens_seq))
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
    costs = replace(costs, platform=platform, modes=modes, apart_extra_s=whole, shared_extra_s=part)
    objective = r.choice(["throughput", "power_efficiency"])
    limits = replace(
        limits, apart=apart, power_w=r.choice([None, None, 200.0]), period_s=r.choice([None, 1.0])
    )
    return Problem(graph, costs, limits, objective)


def in_whole_seconds(costs: CostTable) -> CostTable:
    """The table with modes of 1 to 4 s, and links of 0 to 2 s."""

    def whole(m: Mode) -> Mode:
        seconds = 1.0 + m.estimate.latency_s // 5e-6 % 4
        occupancy = seconds if m.estimate.occupancy_s == m.estimate.latency_s else seconds / 2
        return replace(m, estimate=Estimate(seconds, occupancy, seconds, seconds, 8.0))

    links = tuple(
        replace(
            k, latency_s=k.latency_s * 1e6, bytes_per_s=5e4, per_message_s=k.per_message_s * 2e6
        )
        for k in costs.platform.links
    )
    modes = tuple(map(whole, costs.modes))
    return CostTable(replace(costs.platform, links=tuple(links)), modes)


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
        yield f"  apart {text(space.apart)} couple {space.lanes_couple}"
        yield f"  serial {text(space.serial_s)}"
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
    return " ".join(map(text, (modes, slack, dict(orders), found.period_s, found.cost)))


def timed(seed: int) -> list[TimedGraph]:
    """The timed graphs of assignments of a problem; from 3000 on, a ring of 20 tasks."""
    if 3000 <= seed < 4000:
        return [ring(20, 3, 1 + seed % 3, seed)]
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
        for below_s, effort in ((math.inf, 1.0), (1.05 * timing.order_bound_s, 1.0), (0.0, 0.0)):
            best = lane_sequencing.best_orders(timing, below_s=below_s, nodes=20, effort=effort)
            yield f"  best {text(dict(best.orders))} {text((best.period_s, best.bound_s))}"
        periods = [s * best.period_s for s in (0.9, 1, 1.1)]
        yield f"  {[lane_sequencing.no_order_below(timing, s, 20) for s in periods]}"


def schedule_of_modulo(seed: int) -> Iterable[str]:
    """Modulo schedules, their rings, and what swaps make of them."""
    for timing in timed(seed):
        arrays = to_arrays(timing)
        yield f"arrays {text(arrays)}"
        for noise in (0.0, 0.1):
            rings = Rings(arrays, np.array([seed], np.uint64))
            for growth in (1.0, 1.03, 1.1, 1.5, 3.0):
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
        for name, most in (("VECTORS", 1000), ("VECTORS", 1), ("REORDERED", 0)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(slack_minimisation, name, most)
                yield f"slack {name} {most} {valued(fewest_tokens(found, asked.limits))}"
        yield f"lanes {valued(fewest_lanes(found, asked))}"
        for objective in ("throughput", "power_efficiency"):
            worth = cut_period(space, a, objective, cost if cost < math.inf else paced_s)
            blamed = conflict_units(space, a, worth)
            yield f"blamed {text(blamed)}"
            yield f"worth {text([worth(range(n)) for n in range(len(a.modes) + 1)])}"


def exact_lines(seed: int) -> Iterable[str]:
    """Plans of as good a cost with less slack or less power, by enumeration."""
    graph, costs, limits = random_limited(seed, most_tasks=3, most_devices=2)
    asked = Problem(graph, costs, limits)
    search = Search(time.monotonic() + 1e6, 0, "pearl.testing.exhaustive")
    found = exhaustive.solve(asked, search).best
    yield f"best {valued(found)}"
    most = slack_choices(found.assignment.expansion.graph, limits)[0]
    slack = expand(found.assignment.expansion.graph.with_slack(most), ())
    if slack.units == found.assignment.expansion.units:
        loose = replace(found, assignment=replace(found.assignment, expansion=slack))
        yield f"slack {valued(fewest_of_all(loose, asked, search, exhaustive.solve))}"
    yield f"watts {valued(fewest_watts(found, asked, search, exhaustive.solve))}"


def start_lines(seed: int) -> Iterable[str]:
    """Plans without a search, each translated to this problem and to others, and checked."""
    asked = problem(seed)
    for objective in ("throughput", "power_efficiency", "makespan"):
        free = replace(asked.limits, power_w=None, period_s=None)
        goal = replace(asked, objective=objective, limits=free)
        found = first_plan(goal)
        yield f"{objective} {valued(found)}"
        if found is None:
            continue
        lane_orders = found.ordered.orders
        proof = Proof(objective, "milp", 0, 0.0, 0.0, 0.0, timed_out=True)
        plan = replace(build_plan(found.assignment, lane_orders, proof), problem=goal)
        slow = replace(free, period_s=0.9 * found.period_s)
        for other in (
            goal,
            replace(goal, objective="makespan"),
            replace(goal, limits=slow, objective="throughput"),
        ):
            yield f"  known {valued(translate_plan(plan, other))}"


def regret_lines(seed: int) -> Iterable[str]:
    """Plans of least regret under draws by enumeration, and plans under the same draws."""
    graph, costs, limits = random_limited(seed, most_tasks=3, most_devices=2)
    costs = banded(costs, 3.0, 3.0, (0.2, 4.0))
    for kind, power_w, few, most in (
        ("mean", None, 0, 99),
        ("worst", 150.0, 0, 99),
        ("worst", None, 500, 99),
        ("mean", 150.0, 500, 3),
        ("worst", None, 0, 3),
    ):
        asked = Problem(graph, costs, replace(limits, power_w=power_w))
        search = Search(time.monotonic() + 1e6, 0, "pearl.testing.exhaustive")
        calls = itertools.count()

        def run(problem: Problem, search: Search, calls: Any = calls, most: int = most) -> Outcome:
            if next(calls) > most:
                raise OutOfTimeError
            return exhaustive.solve(problem, search)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(robust, "FEW", few)
            outcome, regret = least_regret(asked, search, run, kind, Draws(4, 1))
        yield f"{kind} {power_w} {few} {most} {valued(outcome.best)}"
        yield f"  {outcome.timed_out} {text(outcome.bound)}"
        yield f"  {text([getattr(regret, f.name) for f in fields(regret)])}"
        orders = outcome.best.ordered.orders
        proof = Proof("throughput", "milp", 0, 0.0, 0.0, 0.0, timed_out=True)
        plan = replace(build_plan(outcome.best.assignment, orders, proof), problem=asked)
        scale = Scale.from_regret(regret, costs)
        wider = tuple(replace(k, bytes_per_s=2 * k.bytes_per_s) for k in costs.platform.links)
        quicker = replace(costs, platform=replace(costs.platform, links=wider))
        for table in (costs, quicker) if most > 3 else ():
            drawn = scale.solve(replace(asked, costing=table), search, exhaustive.solve, plan)
            yield f"  drawn {text((drawn.cost, drawn.bound))} {text(drawn.rival.key)}"


PARTS: dict[str, Callable[[int], Iterable[str]]] = {
    "spaces": space_lines,
    "programs": program_lines,
    "floors": floor_lines,
    "schedules": schedule_lines,
    "orders": order_lines,
    "modulo": schedule_of_modulo,
    "ties": tie_lines,
    "exact": exact_lines,
    "starts": start_lines,
    "regrets": regret_lines,
}
SEEDS = {
    "programs": (0, 6, 7, 10, 20, 34, 1003, 2004),
    "ties": (0, 3, 10, 34, 1003, 2006),
    "modulo": (6, 16, 34, 2004, 2006, 3000, 3001, 3002),
    "orders": (0, 1, 10, 33, 1003, 2004, 2006, 4006, 4007, 4010),
    "exact": (1, 3, 12, 24, 77),
    "starts": (0, 6, 10, 16),
    "regrets": (6, 20),
}
"""Part → its problems; of the other parts all of `ALL`."""

ALL = (0, 1, 2, 6, 10, 16, 20, 29, 33, 34, 38, 1002, 1003, 2004, 2006, 2011)


CASES = [(part, seed) for part in PARTS for seed in SEEDS.get(part, ALL)]


def made(part: str, seed: int) -> str:
    return "\n".join((f"# {seed}", *PARTS[part](seed), ""))


def kept(part: str, seed: int) -> str:
    before, title, rest = (FOLDER / f"{part}.txt").read_text().partition(f"# {seed}\n")
    assert title, before
    return title + rest.partition("# ")[0]


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
    for seed in dict.fromkeys(seed for _, seed in CASES):
        if not 3000 <= seed < 4000:
            check(seed)
    FOLDER.mkdir(exist_ok=True)
    for part in PARTS:
        texts = (made(part, seed) for other, seed in CASES if other == part)
        (FOLDER / f"{part}.txt").write_text("".join(texts))


if __name__ == "__main__":
    main()
