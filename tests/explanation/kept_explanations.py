"""Explanations made by hand, whose words are kept; and small problems to explain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from pearl.explanation import Explanation
from pearl.explanation.bound import Bound, BoundPart
from pearl.explanation.crossover import Crossover, Move
from pearl.explanation.diagnosis import QuestionAnswer
from pearl.explanation.near_optimal import RunnerUp, RunnerUps
from pearl.explanation.what_if import WhatIf
from pearl.graph.task_graph import Edge, TaskGraph
from pearl.planning.costs import CostTable
from pearl.report.document import Drawing, Page, Sentences
from pearl.report.terminal import page_text
from pearl.testing.graphs import devices, loop, mode, star, tasks
from pearl_estimators import Estimate
from tests.examples import two_device_plan
from tests.report.kept_drawings import drawn
from tests.report.kept_pages import listed, news

US = 1e-6
LONG_S = 600.0
"""More than any explanation takes, on a machine however busy."""


def told(e: Explanation) -> list[str]:
    """Return what the pages and the terminal say of an explanation, a line each."""
    found = [e.help_sentence().text]
    for s in e.sections():
        found.append(f"# {s.title}: {s.finding}|{s.guide}")
        for b in s.blocks:
            match b:
                case Drawing():
                    found += drawn(b).splitlines()
                case Sentences():
                    found += [text for _, text in b.rows]
    shown, every, short = (
        page_text(Page("", blocks), 200).splitlines()
        for blocks in (e.blocks(), e.details()[0].blocks, e.short_blocks())
    )
    return [*found, *shown, *every, *short]


def varied() -> Iterator[tuple[str, Explanation]]:
    """Yield explanations by hand, of which the first is that of the others."""
    plan = two_device_plan()
    parts = BoundPart("learn", 8, 4.8e-4, 0.96), BoundPart("sync", 1, 2e-5, 0.04)
    bound = Bound("lane", "gpu0/0", 5e-4, 5e-4, 1, parts, "cpu/0", 0.636)
    near, far = replace(plan, value=15_600.0), replace(plan, value=15_200.0)
    close = (RunnerUp(near, ("act on gpu0",), 0.025, True),
             RunnerUp(far, ("3 lanes instead of 2", "learn eager"), 0.05, False))  # fmt: skip

    def change(
        kind: Any, name: str, text: str, gain: float | None, *, proven: bool = True
    ) -> WhatIf:
        value = None if gain is None else 16_000.0 * (1 + gain)
        why = "there is none" if gain is None else None
        per_j = None if gain is None else 100.0 + gain
        return WhatIf(kind, name, text, value, value, per_j, gain, proven, gain != 0.0, why)

    changes = (
        change("slack", "prefetch", "prefetch 0 → 1", 0.3),
        change("task", "learn", "learn 20 % faster", 0.2375),
        change("link", "cpu-gpu0", "link cpu-gpu0 twice as fast", 0.02, proven=False),
        change("lanes", "cpu", "one more core and lane on cpu", 0.001),
        change("task", "step", "step 20 % faster", 0.0009),
        change("slack", "mine", "mine 1 → 2", 0.0, proven=False),
        change("device", "gpu0", "without gpu0", -0.5),
        change("device", "cpu", "nothing on cpu, the host", None),
    )
    moves = (Move(256, "cpu", "gpu0"), Move(1024, "gpu0", "pe"))
    sizes = Crossover("learn", 64, "cpu", 1, 16_384, "cpu", moves, False)
    first = Explanation(
        16_000.0, "env steps/s", "throughput", "env steps", 16_000.0, 100.0, 0.05, bound,
        RunnerUps(close, True), changes, (sizes, replace(sizes, moves=(), proven=True)),
        (QuestionAnswer("Why does gpu0 idle?", "It does not."),), (), True, 1.0,
    )  # fmt: skip
    yield "by hand", first
    yield "left out", replace(first, left_out=("a", "b", "c", "d"), proven=False)
    yield "three left out", replace(first, left_out=("a", "b", "c"), what_ifs=changes[2:5])
    yield "simulated", replace(first, simulated=("gpu0",))
    yield "one change", replace(first, what_ifs=changes[1:2],
                                runner_ups=RunnerUps(close[:1], False))  # fmt: skip
    yield "slack alone", replace(first, what_ifs=changes[:1], runner_ups=RunnerUps((), True))
    yield "nothing helps", replace(first, what_ifs=changes[3:6], runner_ups=RunnerUps((), False))
    yield "no changes", replace(first, what_ifs=())
    task = replace(changes[1], gain=0.5)
    yield "task before slack", replace(first, what_ifs=(task, *changes[:1], *changes[2:]))
    three = (*changes[:2], replace(changes[2], gain=0.03))
    yield "three changes", replace(first, what_ifs=three)
    many = tuple(change("task", f"t{n}", f"t{n} 20 % faster", 0.1 - 0.01 * n) for n in range(10))
    yield "ten changes", replace(first, what_ifs=many)
    better = replace(close[0], loss=-0.025)
    yield "a better plan", replace(first, runner_ups=RunnerUps((better, *close[1:]), False))
    regret = plan.regret
    assert regret
    plans = tuple(replace(r, plan=replace(r.plan, regret=regret)) for r in close)
    yield "regret", replace(first, regret=regret, runner_ups=RunnerUps(plans, True))
    worst = replace(regret, kind="worst")
    yield "worst regret", replace(first, regret=worst, runner_ups=RunnerUps(close, True))
    yield "makespan", replace(first, objective="makespan", value_unit="s")
    for kind, name in (("cycle", "a ring"), ("path", "a → b"), ("pace", "gpu0/0"), ("link", "l")):
        other: Any = replace(bound, kind=kind, name=name, tokens=2, next_name=None, parts=())
        yield kind, replace(first, bound=other)
    yield "cycle of one token", replace(first, bound=replace(bound, kind="cycle"))


def two_devices(latency_s: float = US) -> tuple[TaskGraph, CostTable]:
    """a (10 us) on d0 feeds b (6 us), which d1 has and d0 too in 9 us; b feeds the next a."""
    back = Edge("b", "a", tokens_seq=1, bytes=1, limit="policy_lag")
    graph = TaskGraph("two", tasks("a", "b"), (Edge("a", "b", bytes=1), back))
    found = (mode("a", "d0", 10 * US, energy=2e-4), mode("b", "d0", 9 * US, energy=1e-4),
             mode("b", "d1", 6 * US, energy=3e-4))  # fmt: skip
    return graph, CostTable(star(devices("d0", "d1", lanes=1), latency_s, 1e30), found)


def doubtful(kind: str = "") -> tuple[TaskGraph, CostTable]:
    """y is faster on the GPU by its estimate, by which it may be 8 times slower too."""
    wild = replace(mode("y", "gpu", 1.0), estimate=Estimate(1.0, 1.0, 0.9, 8.0))
    sure = replace(mode("y", "cpu", 1.1), estimate=Estimate(1.1, 1.1, 1.0, 1.2))
    cpu, gpu = devices("cpu", "gpu")
    found = star((cpu, replace(gpu, kind=kind or gpu.kind)), 0.001, 1e9)
    return loop("x", "y"), CostTable(
        found, (mode("x", "cpu", 0.5), mode("x", "gpu", 0.5), sure, wild)
    )


@cache
def said() -> dict[str, list[str]]:
    """Return what each explanation by hand says that none before has said."""
    return news((name, told(e)) for name, e in varied())


CASES = [name for name, _ in varied()]


def all_explained() -> str:
    """Everything that is kept."""
    return listed(said())
