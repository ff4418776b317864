"""Answers of `advise` to problems whose plans are given, and its page, in words and numbers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pearl
from pearl.advice import Advice, hardware, limits_cost, measuring, sizes
from pearl.advice.case import Case, Finding
from pearl.advice.comparison import Comparison, how_sure, number, ratio_text, share_text
from pearl.explanation.diagnosis import no_mode_reason, refusals
from pearl.explanation.resolve import Resolver
from pearl.planner.planner import build_problem
from pearl.planning.costs import CostTable
from pearl.planning.draws import Draws
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.spec.system import System
from pearl.testing.graphs import devices, loop, mode, star
from pearl_estimators import Estimate
from tests.examples import fused_plan, two_device_plan
from tests.report.kept_pages import BOTH, first, listed, news, rounded, words

SPEC: dict[str, Any] = {
    "algorithm": {"name": "dqn", "env": "CartPole-v1", "num_envs": 8, "hidden": [64, 32],
                  "batch_size": 64, "replay_ratio": "1"},
    "platform": "cpu_gpu_fpga",
    "limits": {"devices": {"update": ["cpu"]}, "power": "900 W", "policy_lag": 1},
}  # fmt: skip

Answer = float | tuple[float, str] | None
"""The rate of a plan over that of the case, and the device of all its tasks; None for no plan."""


@dataclass(frozen=True)
class Told(Case):
    """A case whose other plans are told in order; `asked` notes what is asked."""

    told: Iterator[Answer] = field(default_factory=lambda: iter(()))
    asked: list[str] = field(default_factory=list)
    left: float = 100.0

    @property
    def left_s(self) -> float:
        return self.left

    def _next(self, what: str, problem: Problem | None = None) -> Plan | None:
        self.asked.append(what)
        answer = next(self.told, None)
        if answer is None:
            return None
        factor, device = answer if isinstance(answer, tuple) else (answer, "")
        p = self.plan
        return replace(
            p,
            value=p.value * factor,
            rates={name: rate * factor for name, rate in p.rates.items()},
            period_s=p.period_s / factor,
            energy_per_iteration_j=p.energy_per_iteration_j / factor**2,
            tasks=tuple(replace(t, device=device or t.device) for t in p.tasks),
            problem=problem or p.problem,
        )

    def plan_with(self, sets: Mapping[str, object]) -> Plan | None:
        return self._next(", ".join(f"{key}={value}" for key, value in sets.items()))

    def plan_system(self, system: System) -> Plan | None:
        names = [f"{d.name}{d.design and f' ({d.design})'}" for d in system.platform.devices]
        limits = {k: v for k, v in system.raw["limits"].items() if k in ("power", "devices")}
        costs = replace(self.problem.costs, platform=system.platform)
        return self._next(f"{', '.join(names)}; {limits}", replace(self.problem, costing=costs))

    def solve_variant(self, problem: Problem, objective: str | None = None) -> Plan | None:
        on = Counter(f"{t} on {m.device}" for m in problem.costs.modes for t in m.tasks)
        words = sorted(f"{n} {what}" for what, n in on.items() if not what.startswith("env_step"))
        return self._next(f"{objective}: {', '.join(words)}")

    def compare(self, other: Plan) -> Comparison:
        """By the rates alone."""
        ratio = number(other) / number(self.plan)
        better = min(max(0.5 + 2 * (ratio - 1), 0.0), 1.0)
        near = float(abs(ratio - 1) < 0.05)
        return Comparison(ratio, better, 1 - better, 1.25, 3.0, 200, near)


@cache
def base(changes: str = "{}") -> tuple[System, Plan]:
    system = pearl.load(SPEC, set=json.loads(changes))
    return system, pearl.plan(system, time_limit_s=600.0)


def reduced() -> Told:
    """Two learners whose gradients a star reduces."""
    limits = {"learners": 2, "reduction": "star"}
    system = pearl.load(SPEC, set={**HOST, "limits": limits})
    return replace(case(0.9, 1.1, 2.5, changes=HOST), system=system)


def copied() -> Told:
    """Two copies of the step on the CPU alone, and one of the actor."""
    c = case(0.5, 1.1, 1.2, 1.25, 1.3, changes=HOST)
    tasks = tuple(replace(t, replicas=1 + (t.task == "env_step")) for t in c.plan.tasks)
    return replace(c, plan=replace(c.plan, tasks=tasks))


def case(*told: Answer, changes: Mapping[str, object] | None = None, left: float = 100.0) -> Told:
    system, plan = base(json.dumps(changes or {}))
    return Told(system, plan, Draws(40), 0.0, ("my spec.yaml", "seed=3"), iter(told), left=left)


def small(costs: CostTable, draws: int = 200) -> Case:
    """A case of one task, whose other plans are solved."""
    system = pearl.load(SPEC, set={"limits": {}})
    plan = pearl.solve(loop("x"), costs)
    return Case(system, plan, Draws(draws), time.monotonic() + 600.0, ("my spec.yaml",))


def table(cpu: Estimate, gpu: Estimate, *more: str) -> CostTable:
    """One task on a CPU, and on one or more GPUs that are alike."""
    names = ("cpu", "gpu", *more)
    modes = [replace(mode("x", d, 1.0), estimate=cpu if d == "cpu" else gpu) for d in names]
    return CostTable(star(devices(*names)), tuple(modes))


def solved() -> dict[str, Callable[[], Iterator[Finding]]]:
    """Return the name of each case in which everything is solved."""
    known, doubtful = Estimate(1.0, 1.0, 0.9, 1.1), Estimate(1.1, 1.1, 0.4, 4.0)
    wild, slow = table(known, doubtful), table(known, Estimate(50.0, 50.0, 40.0, 60.0))
    near = table(known, Estimate(1.1, 1.1, 1.0, 1.2))
    pair = table(known, Estimate(0.2, 0.2, 0.1, 0.3), "gpu2")
    return {
        "sure, in doubt": lambda: measuring.how_sure(small(wild)),
        "sure, near": lambda: measuring.how_sure(small(near)),
        "sure, far": lambda: measuring.how_sure(small(slow)),
        "two cards": lambda: hardware.device_findings(small(pair, 20)),
        "a slow card": lambda: hardware.device_findings(small(slow, 20)),
        "a card in doubt": lambda: hardware.device_findings(small(wild, 20)),
    }


def refused() -> list[str]:
    """Return what devices cannot run, by their kinds, by pins or by variants that limits name."""
    lines = []
    pinned = {"pin": {"replay_insert": "gpu"}, "devices": {"inference": ["cpu"]}}
    for limits in (pinned, {"variants": {"update": ["native"], "inference": ["torch"]}}):
        system = pearl.load(SPEC, set={"limits": limits})
        asked = Resolver(base()[1], build_problem(system), 0.0)
        found = refusals(asked, system.platform.devices)
        lines += [f"{a.question} {a.answer}" for a in found]
        for device in ("cpu", "gpu", "fpga"):
            for task in asked.problem.graph.tasks:
                if reason := no_mode_reason(asked, task.name, device):
                    lines.append(f"{task.name}: {reason}")
    return lines


def shown(found: Iterable[Finding], asked: Iterable[str] = ()) -> list[str]:
    """Return findings, and what was asked for them, a line each."""
    lines = []
    for f in found:
        lines += [f.question, f"  {f.answer}", f"  {f.command}"]
        lines.append(f"  {rounded(f.share, 6)} {f.decides} {json.dumps(rounded(f.numbers, 6))}")
    return lines + [f"  asked: {line}" for line in asked]


Ask = Callable[[Case], Iterator[Finding]]

HOST = {"platform": {"devices": {"cpu": "xeon_gold_6326"}}, "limits": {}}
"""Keys of a spec on a CPU alone."""
ONE_CORE = {
    "kind": "cpu", "source": "test", "width": 1, "peak": "1 GFLOP/s", "overhead": "1 us",
    "memory_bandwidth": "1 GB/s", "idle_power": "1 W", "active_power": "2 W",
}  # fmt: skip
SERIAL = {"platform": {"devices": {"cpu": ONE_CORE}}, "limits": {}}
TWO_LANES = {**HOST, "limits": {"max_lanes": 2}}
HELD = {"limits.devices": {"replay_sample": ["cpu"]}}
PAIR = {"platform": "cpu_gpu", "limits": {}}
MAKESPAN = {"objective": "makespan", "limits": {}}


def moved(better: float | None, ratio: float = 1.2) -> Ask:
    """The question about sizes, where the plan that stays is as given; None: it is not found."""

    def ask(c: Case) -> Iterator[Finding]:
        said = Comparison(ratio, better or 0.0, 1 - (better or 0.0), 2.0, 4.0, 40, 1.0)
        stays = lambda *_: None if better is None else c.plan  # noqa: E731
        with (
            patch.object(sizes, "compare", lambda *_: said),
            patch.object(sizes, "_plan_staying", stays),
        ):
            yield from sizes.which_sizes_matter(c)

    return ask


def asked() -> dict[str, tuple[Ask, Callable[[], Told]]]:
    """Return the name of each case, its question and the case."""
    buys = lambda *names: lambda c: hardware.purchase_findings(c, names)  # noqa: E731
    environments, actors = sizes.how_many_environments, sizes.how_many_actors
    learners, costs = sizes.how_many_learners, limits_cost.what_limits_cost
    matter = sizes.which_sizes_matter
    there, replay = hardware.device_findings, hardware.where_replay
    return {
        "bound": (limits_cost.what_bounds, lambda: case()),
        "limits": (costs, lambda: case(1.5, 1.25, 1.1, 1.3, 1.2)),
        "limits, free": (costs, lambda: case(1.004, None, 1.0, 1.004)),
        "limits, at the edge": (costs, lambda: case(1.005, 1.004, 1.005)),
        "limits, makespan": (limits_cost._slack, lambda: case(1.5, changes=MAKESPAN)),
        "environments": (environments, lambda: case(0.5, 0.75, 1.5, 1.9, 1.9)),
        "environments, fewer": (environments, lambda: case(0.96, 0.99, 1.0, 1.0, 1.0)),
        "environments, as now": (environments, lambda: case(0.5, 0.7, 1.02, 1.04, 1.05)),
        "environments, none": (environments, lambda: case()),
        "actors": (actors, lambda: case(1.5, 1.8, 2.5, 2.6, changes=HOST)),
        "actors, as now": (actors, lambda: case(1.0, 1.02, 1.05, 1.05, changes=HOST)),
        "actors, with a lag": (actors, lambda: case(1.0, 1.0, 1.0, 1.3, changes=HOST)),
        "actors, one core": (actors, lambda: case(changes=SERIAL)),
        "actors, makespan": (actors, lambda: case(changes={**HOST, **MAKESPAN})),
        "actors, no time": (actors, lambda: case(changes=HOST, left=0.5)),
        "actors, few lanes": (actors, lambda: case(1.1, 1.2, 1.3, 1.4, 1.5, changes=TWO_LANES)),
        "actors, copies": (actors, copied),
        "actors beside a GPU": (actors, lambda: case(1.1, 1.2, 1.3, changes=PAIR)),
        "learners, reduced": (learners, reduced),
        "learners": (learners, lambda: case(1.5, 2.0, 2.04)),
        "learners, as now": (learners, lambda: case(0.9, 1.02, 1.05)),
        "learners, none": (learners, lambda: case()),
        "learners, none in time": (learners, lambda: case(left=0.0)),
        "learners, makespan": (learners, lambda: case(1.5, changes=MAKESPAN)),
        "sizes": (matter, lambda: case(1.2, 0.8, 0.5, 2.0, 0.5, 1.1, 0.9, 0.7, 0.6)),
        "sizes, moved": (moved(0.9), lambda: case(1.2, (0.8, "gpu"), 0.5, 2.0, (0.5, "fpga"), 1.1)),
        "sizes, moved by the estimates": (moved(0.1), lambda: case(1.2, (0.8, "gpu"))),
        "sizes, moved for nothing": (moved(0.5, 1.01), lambda: case((0.8, "gpu"))),
        "sizes, moved, no time": (moved(None), lambda: case((0.8, "gpu"))),
        "sizes, one device": (matter, lambda: case(1.2, 0.8, changes=HOST)),
        "sizes, none": (matter, lambda: case()),
        "devices": (there, lambda: case(0.8, 1.1, 1.2, 0.9)),
        "devices, alike": (there, lambda: case(1.01, 0.99, 1.0)),
        "devices, none": (there, lambda: case()),
        "replay": (replay, lambda: case(0.9)),
        "replay, better": (replay, lambda: case((1.2, "gpu"))),
        "replay, none": (replay, lambda: case()),
        "replay, one device": (replay, lambda: case(changes=HOST)),
        "replay, held": (replay, lambda: case(0.9, changes=HELD)),
        "buy": (buys("rtx_4090"), lambda: case(1.5, 1.6, 1.61)),
        "buy, used": (buys("rtx_4090"), lambda: case((1.5, "rtx_4090"), 1.4)),
        "buy, nothing": (buys("rtx_4090"), lambda: case()),
        "buy a host": (buys("epyc_7763"), lambda: case(1.2)),
        "buy by default": (buys(), lambda: case((1.5, "rtx_4090"), 1.5, changes=HOST)),
        "power": (measuring.rates_and_power, lambda: case(1.2)),
        "power, no better": (measuring.rates_and_power, lambda: case(1.002)),
        "power, none": (measuring.rates_and_power, lambda: case()),
    }  # fmt: skip


def comparisons() -> list[str]:
    """Return what comparisons recommend, at the edges of each rule."""
    rows = []
    for ratio, better, worse, near, closed in (
        (1.5, 0.9, 0.1, 0.0, False), (1.5, 0.1, 0.9, 0.0, False), (0.5, 0.9, 0.1, 0.0, False),
        (0.5, 0.1, 0.9, 0.0, False), (1.0, 0.5, 0.5, 0.0, False), (1.1, 0.5, 0.5, 0.0, False),
        (0.9, 0.5, 0.5, 0.0, False), (1.019, 0.9, 0.1, 0.9, False), (1.02, 0.9, 0.1, 0.9, False),
        (0.981, 0.9, 0.1, 0.9, False), (0.99, 0.9, 0.1, 0.89, False), (1.3, 0.9, 0.1, 0.0, True),
        (0.7, 0.9, 0.1, 0.0, True), (1.01, 0.0, 1.0, 0.0, True), (0.0, 0.0, 1.0, 0.0, False),
        (1.2, 0.55, 0.45, 0.0, False), (1.2, 0.6, 0.4, 0.0, False),
    ):  # fmt: skip
        c = Comparison(ratio, better, worse, 1.001, 4.0, 200, near, closed)
        r = c.recommended
        rows.append(f"{ratio} {better} {worse} {near} {closed}: {c.choice} {c.confidence} "
                    f"{c.is_disputed} {r.ratio:.6g} {r.better} {r.worse} {r.lose} {r.win}: "
                    f"{how_sure(c)}; {hardware._verdict('Word', c)}"
                    f"{hardware._confidence_text(c, 'With', 'Without')}")  # fmt: skip
    rows += [ratio_text(f) for f in (1.0, 1.094, 1.1, 99.94, 100.0, 12_345.6)]
    rows += [share_text(part, 300) for part in (0.0, 0.001, 0.004, 0.006, 0.5, 0.994, 0.997, 1.0)]
    return rows


def findings() -> tuple[Finding, ...]:
    """Return findings by hand, one for each form of a card and of a section."""
    sure = {"best": 0.71, "regret_mean": 0.03, "regret_worst": 0.4, "rivals": 3}
    sizes_ = {"by_size": {"1": 8_000.0, "2": 16_000.0, "4": 17_000.0}}
    long = "No device that a plan could use in any way is in the catalogue as it is now and then"
    return (
        Finding("What bounds you now?", "16,000. Lane.", "pearl plan x", None, {"bound": "gpu0/0"}),
        Finding("Is gpu worth having?", "Yes: 2 instead of 1 (2.0×). With gpu: better.",
                "pearl plan x", 0.95, {"choice": "other", "ratio": 1.5, "lose": 1.3, "win": 2.0}),
        Finding("Is it?", "No (so it is): 1.", "pearl plan y", 1.0,
                {"choice": "plan", "win": 1.0, "lose": 9.0}),
        Finding("Does it?", "Maybe (0.4 %): equal.", "pearl plan y", 0.92, {"choice": "either"}),
        Finding("How many?", "2, as now: others that were tried give less than 5 % more (2).",
                "pearl a", None, sizes_),
        Finding("How many more?", "4 are enough. It changes what is learned.", "pearl a", None,
                {"by_size": {"3": 1.0, "5": 2.0}}),
        Finding("Would a wider limit help?", "prefetch: 1 is worth 1.37 x: as it is.", "pearl z",
                0.75, {"choice": "other", "ratio": 1.37, "lose": 1.5}),
        Finding("Long?", f"{long}.", "pearl a", None, {"by_size": {"1": 1.0}}),
        Finding("Short?", "Nothing", "pearl a"),
        Finding("How sure is this plan?", "It is the best.", "pearl plan x", 0.71, sure),
        Finding("What should be measured to be surer?", "update on gpu: it.", "pearl calibrate",
                None, {"family": "update on gpu0", "gain": 0.02, "regret_mean": 0.03}),
        Finding("What does it yield?", "162 W.", "pearl pareto", None,
                {"power_w": 162.0, "env_steps_per_j": 98.8}),
    )  # fmt: skip


def advices() -> Iterator[tuple[str, Advice]]:
    """Yield advice by hand."""
    plan, all_ = two_device_plan(), findings()
    whole = Advice(plan, all_, 200, 7, (), 1.25)
    yield "everything", whole
    yield "left out", replace(whole, verdicts=all_[:1], left_out=("sure", "sizes"))
    yield "settled", replace(whole, verdicts=all_[2:5], settled=("replay", "buy"))
    yield "slack leads", replace(whole, verdicts=all_[6:7])
    small = replace(all_[1], numbers={**all_[1].numbers, "ratio": 1.019})
    yield "little gain", replace(whole, verdicts=(small,))
    edge = replace(all_[1], numbers={**all_[1].numbers, "ratio": 1.02})
    yield "just enough", replace(whole, verdicts=(edge,))
    best = replace(all_[9], numbers={**all_[9].numbers, "best": 1.0})
    nothing = replace(all_[11], numbers={"power_w": 162.0, "env_steps_per_j": None})
    yield "sure", replace(whole, plan=fused_plan(), verdicts=(best, nothing))


@cache
def pages() -> dict[str, list[str]]:
    """Return what each page of advice by hand says that no page before has said."""
    made = ((name, [*words(a.page()), *str(a).splitlines()]) for name, a in advices())
    return news(made, *map(first, BOTH))


CASES: dict[str, Callable[[], list[str]]] = {
    "comparisons": comparisons,
    "refused": refused,
    **{name: (lambda ask=ask, made=made: answered(ask, made()))
       for name, (ask, made) in asked().items()},
    **{name: (lambda made=made: shown(made())) for name, made in solved().items()},
    **{f"page, {name}": (lambda name=name: pages()[name]) for name, _ in advices()},
}  # fmt: skip
"""Case → what is kept of it, a line each."""


def answered(ask: Ask, told: Told) -> list[str]:
    found = list(ask(told))
    return shown(found, told.asked)


def all_advised() -> str:
    """Everything that is kept."""
    return listed({name: made() for name, made in CASES.items()})
