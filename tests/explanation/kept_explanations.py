"""Explanations of small problems: every bound, runner-up, change and answer, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any
from unittest.mock import patch

from pearl import InfeasibleError, load, solve
from pearl.explanation import Explanation, explain
from pearl.explanation.bound import Bound, BoundPart
from pearl.explanation.crossover import Crossover, Move
from pearl.explanation.diagnosis import QuestionAnswer, answers, fastest_by_estimates
from pearl.explanation.near_optimal import RunnerUp, RunnerUps
from pearl.explanation.resolve import Resolver
from pearl.explanation.what_if import WhatIf
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
from pearl.planning.costs import CostTable
from pearl.planning.plans import Plan
from pearl.report.document import Drawing, Page, Sentences
from pearl.report.terminal import page_text
from pearl.testing.graphs import devices, loop, mode, star, tasks
from pearl_devices import Kernel, Platform
from pearl_estimators import Estimate
from tests.examples import two_device_plan
from tests.graphs import dqn, dqn_costs
from tests.report.kept_drawings import drawn
from tests.report.kept_pages import listed, news

US = 1e-6
LONG_S = 600.0
"""More than any explanation takes, on a machine however busy."""


def digits(value: float | None) -> str:
    """Return six digits; what a last bit leaves beside 0 is 0."""
    return "–" if value is None else f"{0.0 if abs(value) < 1e-12 else value:.6g}"


def numbers(e: Explanation) -> list[str]:
    """Return everything that an explanation holds, a line each."""
    b = e.bound
    found = [
        f"{e.value:.6g} {e.value_unit}, {e.throughput:.6g}/s, {digits(e.efficiency)}, {e.counted}"
    ]
    found.append(f"{b.kind} {b.name}: {b.period_s:.6g} {b.seconds:.6g} {b.tokens} {b.next_name}")
    found += [f"  {p.task} × {p.firings}: {p.seconds:.6g} {p.share:.6g}" for p in b.parts]
    found.append(f"complete {e.runner_ups.complete}, proven {e.proven}, left out {e.left_out}")
    for r in e.runner_ups.plans:
        status = f"{r.plan.status} {digits(r.plan.gap)} {digits(r.plan.bound_value)}"
        found.append(f"  {r.differs} {digits(r.loss)} {r.proven} {status}")
    for w in e.what_ifs:
        values = [digits(v) for v in (w.value, w.throughput, w.efficiency, w.gain)]
        said = f"{w.kind} {w.name}|{w.text}|{' '.join(values)}|{w.proven} {w.changes}"
        found.append(f"  {said} {w.infeasible or ''}")
    found += [f"  {a.question} {a.answer}" for a in e.answers]
    return found


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
    parts = BoundPart("update", 8, 4.8e-4, 0.96), BoundPart("param_sync", 1, 2e-5, 0.04)
    bound = Bound("lane", "gpu0/0", 5e-4, 5e-4, 1, parts, "cpu/0", 0.636)
    near, far = replace(plan, value=15_600.0), replace(plan, value=15_200.0)
    close = (RunnerUp(near, ("inference on gpu0",), 0.025, True),
             RunnerUp(far, ("3 lanes instead of 2", "update eager"), 0.05, False))  # fmt: skip

    def change(
        kind: Any, name: str, text: str, gain: float | None, *, proven: bool = True
    ) -> WhatIf:
        value = None if gain is None else 16_000.0 * (1 + gain)
        why = "there is none" if gain is None else None
        per_j = None if gain is None else 100.0 + gain
        return WhatIf(kind, name, text, value, value, per_j, gain, proven, gain != 0.0, why)

    changes = (
        change("slack", "prefetch", "prefetch 0 → 1", 0.3),
        change("task", "update", "update 20 % faster", 0.2375),
        change("link", "cpu-gpu0", "link cpu-gpu0 twice as fast", 0.02, proven=False),
        change("lanes", "cpu", "one more core and lane on cpu", 0.001),
        change("task", "env_step", "env_step 20 % faster", 0.0009),
        change("slack", "mine", "mine 1 → 2", 0.0, proven=False),
        change("device", "gpu0", "without gpu0", -0.5),
        change("device", "cpu", "nothing on cpu, the host", None),
    )
    moves = (Move(256, "cpu", "gpu0"), Move(1024, "gpu0", "pe"))
    sizes = Crossover("update", 64, "cpu", 1, 16_384, "cpu", moves, False)
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


def explained() -> Iterator[tuple[str, Callable[[], Explanation]]]:
    """Yield problems that are explained in full."""

    def of(plan: Plan, **more: Any) -> Explanation:
        return explain(plan, time_limit_s=LONG_S, **more)

    graph, costs = two_devices()
    yield "two devices", lambda: of(solve(graph, costs), within=0.25)
    yield "power efficiency", lambda: of(solve(graph, costs, objective="power_efficiency"))
    yield "makespan", lambda: of(solve(graph, costs, objective="makespan", method="heft"))
    wide = (mode("a", "cpu", 10 * US, width=2), mode("a", "cpu", 12 * US, variant="w"))
    one = CostTable(Platform("one", devices("cpu", lanes=2)), wide)
    yield "variants and widths", lambda: of(solve(loop("a"), one), within=0.2)
    fast = (mode("a", "d0", 10 * US, energy=9e-4), mode("a", "d1", 9 * US, energy=1e-3))
    hot = devices("d0", "d1", idle_power_w=5.0, active_power_w=100.0)
    paced = CostTable(star(hot), fast)
    yield "pace", lambda: of(solve(loop("a"), paced, limits=Limits(power_w=60.0)), within=0.2)
    found = [mode("a", "d0", 10 * US), mode("b", "d0", 9 * US), mode("b", "d3", 8 * US)]
    found += [mode("b", d, 6 * US) for d in ("d1", "d2")]
    alike = CostTable(star(devices("d0", "d1", "d2", "d3", lanes=1)), tuple(found))
    twins = two_devices(0.0)[0]
    yield "devices alike", lambda: of(solve(twins, alike), within=0.5)
    worse = replace(
        alike, modes=(*alike.modes[:3], mode("b", "d1", 6 * US), mode("b", "d2", 7 * US))
    )
    limits = Limits(memory_bytes={"d1": 1e3}, devices={"b": ("d1", "d2")}, pin={"a": "d0"})
    yield "a limit on memory", lambda: of(solve(twins, worse, limits=limits))
    split = TaskGraph(
        "split", (Task("env", Kernel("env"), environments=4), Task("learn", Kernel("learn"))),
        (Edge("env", "learn", bytes=8), Edge("learn", "env", tokens_seq=2)),
    )  # fmt: skip
    parts = [replace(mode("env", "cpu", 4 * n * US), share=n if n < 4 else None)
             for n in range(1, 5)]  # fmt: skip
    three = Platform("one", devices("cpu", lanes=3))
    shared = CostTable(three, (*parts, mode("learn", "cpu", 12 * US)))
    both = Limits(replicas={"env": 2})
    yield "copies", lambda: of(solve(split, shared, limits=both), within=0.4)
    fused = (mode("a", "cpu", 5 * US), mode("b", "cpu", 5 * US), mode(("a", "b"), "cpu", 8 * US))
    call = CostTable(Platform("one", devices("cpu", lanes=1)), fused)
    pair = replace(loop("a", "b"), fusions=(Fusion("both", ("a", "b"), Kernel("both")),))
    yield "a fused call", lambda: of(solve(pair, call), within=0.3)
    slow = solve(graph, replace(costs, modes=costs.modes[:2]))
    unproved = replace(slow, status="feasible", problem=None)
    yield "not proved", lambda: of(unproved, graph=graph, costs=costs, within=0.2)
    yield "robust", lambda: of(solve(*doubtful(), objective="robust"), within=1.0)


def accelerated(latency_s: float, speed: float, *names: str, **limits: Any) -> Plan:
    """A plan of DQN on a CPU and other devices."""
    graph = dqn(2)
    found = devices("cpu", *(names or ("acc",)), lanes=1)
    platform = star((found[0], *(replace(d, kind="other") for d in found[1:])), latency_s, 1e9)
    table = dqn_costs(platform, {"cpu": 1.0, "acc": speed, "acc2": speed})
    return solve(graph, table, limits=Limits(**limits))


def questions() -> Iterator[tuple[str, Callable[[], list[QuestionAnswer]]]]:
    """Yield problems of which the questions are answered."""

    def of(plan: Plan, deadline: float = float("inf"), **more: Any) -> list[QuestionAnswer]:
        assert plan.problem
        p = replace(plan.problem, **more)
        again = Resolver(plan, p, deadline)
        return [*fastest_by_estimates(again), *answers(again)]

    yield "all on the CPU", lambda: of(accelerated(1e-3, 0.5))
    yield "no time", lambda: of(accelerated(1e-3, 0.5), 0.0)
    yield "slow messages", lambda: of(accelerated(20 * US, 1.5))
    yield "quick", lambda: of(accelerated(US, 8.0))
    yield "two alike", lambda: of(accelerated(1e-3, 0.5, "acc", "acc2"))
    yield "two alike, one used", lambda: of(accelerated(US, 4.0, "acc", "acc2"))
    yield "a chain", lambda: of(accelerated(US, 2.0, policy_lag=0, pin={"update": "acc"}))
    lags = dict.fromkeys(("policy_lag", "insertion_lag", "prefetch", "priority_staleness"), 2)
    yield "a lag", lambda: of(accelerated(US, 2.0, **lags))
    replay = dict.fromkeys(("replay_sample", "replay_insert", "replay_update"), ("cpu",))
    yield "held", lambda: of(accelerated(US, 2.0, devices=replay))
    yield "pinned", lambda: of(accelerated(US, 2.0, pin={"update": "cpu", "replay_sample": "acc"}))
    graph, costs = two_devices()
    home, away = costs.platform.devices
    other = replace(costs.platform, devices=(home, replace(away, kind="other")))
    e = costs.modes[2].estimate
    named = replace(e, parts={"starts": 4 * US, "arithmetic": 0.0, "waits": 2 * US})
    parts = replace(costs, platform=other,
                    modes=(*costs.modes[:2], replace(costs.modes[2], estimate=named)))  # fmt: skip
    yield "parts", lambda: of(solve(graph, parts))
    yield "parts, makespan", lambda: of(solve(graph, parts, objective="makespan", method="heft"))
    far = replace(parts, platform=replace(other, links=tuple(
        replace(k, latency_s=9 * US) for k in other.links)))  # fmt: skip
    yield "messages take longer", lambda: of(solve(graph, far))
    nothing = replace(parts, modes=parts.modes[:2])
    yield "nothing there", lambda: of(solve(graph, nothing))
    pinned = Limits(pin={"b": "d0"})
    yield "kept off", lambda: of(solve(graph, parts, limits=pinned))
    simulated = replace(other, devices=(home, replace(away, kind="other", simulated=True)))
    yield "simulated", lambda: of(solve(graph, replace(parts, platform=simulated)))
    busy = replace(parts, modes=(*parts.modes, mode("a", "d1", 2 * US)))
    yield "always busy", lambda: of(solve(graph, busy))
    xy, doubt = doubtful("other")
    safe = replace(doubt.modes[3], estimate=Estimate(2.0, 2.0, 1.9, 2.1))
    sure = replace(doubt, modes=(*doubt.modes[:3], safe))
    yield "robust", lambda: of(solve(xy, doubt, objective="robust"))
    yield "robust and fastest", lambda: of(solve(xy, sure, objective="robust"))


def moves(at: Callable[[int], str | None], *tasks_on: str, most: int = 4096) -> list[str]:
    """Return the crossover of a learner that each batch size puts on a device; None: no plan."""
    module, plan = import_module("pearl.explanation.crossover"), two_device_plan()

    def solved(batch: int, **_: Any) -> Plan:
        device = at(batch)
        if device is None:
            raise InfeasibleError("none")
        tasks = tuple(replace(t, device=device) for t in plan.tasks)
        return replace(plan, tasks=tasks, status="optimal" if batch != 128 else "feasible")

    class Built(int):
        """A batch size as a problem: what may run where, and nothing else."""

        graph = loop("update", "act")
        costs = CostTable(star(devices("cpu", "gpu")), tuple(
            mode("update", d, 1.0) for d in tasks_on or ("cpu", "gpu")))  # fmt: skip

    system = load("dqn_cartpole", set={"platform": "cpu_gpu"})
    with (
        patch.object(module, "solve_problem", solved),
        patch.object(module, "build_problem", lambda s: Built(s.algorithm.batch_size)),
    ):
        found = module.crossover(system, most=most, time_limit_s=LONG_S)
    return [repr(found)]


@cache
def said() -> dict[str, list[str]]:
    """Return what each explanation by hand says that none before has said."""
    return news((name, told(e)) for name, e in varied())


CASES: dict[str, Callable[[], list[str]]] = {
    **{f"explained, {name}": (lambda made=made: numbers(made())) for name, made in explained()},
    **{f"asked, {name}": (lambda made=made: [f"{a.question} {a.answer}" for a in made()])
       for name, made in questions()},
    "moves, twice": lambda: moves(lambda b: "gpu" if 100 <= b < 1000 else "cpu"),
    "moves, never": lambda: moves(lambda b: "cpu", most=100),
    "moves, below": lambda: moves(lambda b: "cpu" if b < 3 else "gpu"),
    "moves, to a limit": lambda: moves(lambda b: None if b > 700 else "gpu" if b > 500 else "cpu"),
    "moves, no plan now": lambda: moves(lambda b: None),
    "moves, one device": lambda: moves(lambda b: "cpu", "cpu"),
    **{f"told, {name}": (lambda name=name: said()[name]) for name, _ in varied()},
}  # fmt: skip
"""Case → what is kept of it, a line each."""


def all_explained() -> str:
    """Everything that is kept."""
    return listed({name: made() for name, made in CASES.items()})
