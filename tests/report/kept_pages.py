"""Words of the pages of many plans and runs made by hand, and drawings of many figures.

Of the pages of a file the first is kept whole, and of every other what no page before has said. The
pages of plans come after the first run, and those that compare after both. So a sentence is kept
once.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pearl.graph.liveness import StoredArray
from pearl.planning.bands import Regret
from pearl.planning.lane_times import CallTime, LaneTime
from pearl.planning.plans import CLOSED, Bottleneck, Channel, EvaluationPlacement, Plan
from pearl.planning.runs import Drift, Run, StoppedBy, TaskDrift, TaskTiming, TimeToSolution
from pearl.report.compare import Side, SideBySide, side_of_plan, side_of_run
from pearl.report.document import Cards, Command, Drawing, Facts, Page, Sentences, Table
from pearl.report.report import Report
from pearl.report.terminal import page_text
from pearl_devices import Device, Link, Platform
from tests.examples import example_run, fused_plan, recorded, two_device_plan

FOLDER = Path(__file__).parent / "texts"
CPU = Device(
    "cpu", "cpu", width=4, max_lanes=4, peak_flops_per_s=2e11, memory_bytes_per_s=5e10,
    overhead_s=2e-7, idle_power_w=20.0, active_power_w=80.0, model="Xeon 1",
    sources={"model": "given", "peak_flops_per_s": "data sheet"},
)  # fmt: skip
GPU = Device(
    "gpu0", "gpu", width=16, width_unit="sm", peak_flops_per_s=8e12, memory_bytes_per_s=6e11,
    idle_power_w=30.0, active_power_w=300.0,
)  # fmt: skip
LINKS = Link("cpu", "gpu0", 6e-6, 1e10, 2e-6), Link("cpu", "spare", 1e-6, 1e9)
PLACE = Platform("p", (CPU, GPU, Device("spare")), LINKS)
SYSTEM: Any = SimpleNamespace(
    name="mine", algorithm=SimpleNamespace(name="q_learning", env="Maze-v0"), platform=PLACE
)
SOLVED = TimeToSolution(475.0, 2.5, 30_000, 498.5, 3.25, 40_000, 5.0, 0.5, 0.6, 0.25, 0.2, 0.1)


def words(page: Page) -> list[str]:
    """Return all words of a page, a line each; a drawing as its sentence."""
    found = [page.footer, *(f"{s.label}: [{s.answer}]{s.reason}" for s in page.lead)]
    found += [f"{f.label}: {f.value}|{f.unit}|{f.note}|{f.band}" for f in page.figures]
    for s in page.sections:
        found.append(f"# {s.title}: {s.finding}|{s.guide}{'|brief' if s.brief else ''}")
        for b in s.blocks:
            match b:
                case Drawing():
                    found.append(f"{b.title}~ {b.sentence}")
                case Command():
                    found.append(f"$ {b.text}")
                case Cards():
                    for c in b.cards:
                        found.append(f"{c.glyph}: {c.question} [{c.verdict}] {c.reason}")
                        found.append(f"  {c.command}~ {c.sentence}")
                case Facts() | Sentences():
                    found += [f"{label}: {text}" for label, text in b.rows]
                case Table():
                    found += [" | ".join(row) for row in b.rows]
    rest = replace(page, lead=(), figures=(), footer="")
    return [*found, *page_text(rest, 300, details=True).splitlines()]


def plans() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of each case; the first is that of the others."""
    two, one = two_device_plan(), fused_plan()
    assert two.bands
    assert two.regret
    changed = {"learn": {"rung": CLOSED, "device": "pe1", "width_unit": "pe", "variant": "v"}}
    yield "two devices", two
    proved = replace(two, status="optimal")
    yield "proved", proved
    yield "proved for power", replace(proved, objective="power_efficiency",
                                      value_unit="env steps/J")  # fmt: skip
    yield "proved for makespan", replace(proved, objective="makespan", value=1.2e-3,
                                         value_unit="s", bound_value=1e-3)  # fmt: skip
    yield "out of time", replace(two, status="time_limit", gap=0.0004, bound_from="work",
                                 regret=None)  # fmt: skip
    yield "gap", replace(two, gap=0.0005, note="no second lane", bands=None)
    yield "link", replace(two, bottleneck=Bottleneck("link", "cpu-gpu0", ("learn",)))
    yield "lane that waits", loads(two, 0.95, 0.25)
    yield "lane that hardly waits", loads(two, 0.996, 0.25)
    ring = replace(two, bottleneck=Bottleneck("cycle", "a ring", ("act", "x>cpu")))
    for load in (0.97, 0.98):
        yield f"cycle, {load}", loads(ring, load, 0.5)
    sent = replace(two, bottleneck=Bottleneck("cycle", "a ring", ("x>cpu",)))
    yield "cycle of messages", loads(sent, 0.5, 0.5)
    yield "pace", replace(two, pace_s=two.period_s, bound_from="cycles")
    yield "quick pace", replace(two, pace_s=0.99 * two.period_s)
    yield "simulated", replace(two, simulated=("gpu0", "spare"))
    yield "closed form", with_tasks(replace(two, simulated=("pe1",)), changed)
    yield "rung of a user", with_tasks(two, {"learn": {"rung": "my_own"}})
    yield "probed", with_tasks(two, {"learn": {"rung": "probed"}})
    yield "no energy", replace(two, env_steps_per_j=None, power_w=0.0, energy_per_iteration_j=0.0)
    yield "draws missed", replace(
        two,
        bands=replace(two.bands, missed=7, env_steps_per_s=(0.0, 16_000.0), power_w=None,
                      updates_per_s=(0.0, 0.0), period_s=None, env_steps_per_j=(5.0, 5.0)),
    )  # fmt: skip
    yield "no finite band", replace(two, bands=replace(
        two.bands, env_steps_per_s=None, updates_per_s=None, period_s=None, power_w=None,
        env_steps_per_j=None))  # fmt: skip
    yield "regret proved", replace(two, regret=replace(
        two.regret, kind="worst", bound=0.42, solved=40, mean_high=0.031, worst_high=None,
        worst=0.42))  # fmt: skip
    yield "regret of few", replace(two, regret=Regret("worst", 9, 1, 0.1, 0.2, 0.2, 9, 0.1, 0.2))
    stored = (StoredArray("rewards", "whole", 128, 4096), StoredArray("dones", "none", 1, 32))
    yield "rollout", replace(two, rollout=(*stored, StoredArray("values", "window", 2, 64)))
    apart = EvaluationPlacement(
        True, "cpu", "native", 2000, 20, 0.5, 0.4, 0.75, 0.125, 3, "calibrated"
    )
    yield "evaluation apart", replace(two, evaluation=apart)
    yield "evaluation apart at once", replace(two, evaluation=replace(apart, pays_from=1))
    yield "evaluation at pauses", replace(two, evaluation=replace(apart, apart=False))
    yield "copies", copies(two)
    yield "other edges", replace(two, edges=other_edges(two))
    yield "no edges", replace(two, edges=())
    yield "unknown tasks", with_tasks(two, {"step": {"task": "my_task"},
                                            "learn": {"task": "gradient_1"}})  # fmt: skip
    yield "devices of nodes", with_tasks(two, {
        "step": {"device": "node2/cpu"}, "learn": {"device": "tpu"}})  # fmt: skip
    yield "blocks", with_tasks(two, {"learn": {"block": 4, "width": 1},
                                     "act": {"width_unit": "tiles"}})  # fmt: skip
    yield "one fused lane", one
    yield "one lane", replace(one, tasks=tuple(replace(t, fused_with=()) for t in one.tasks),
                              gap=0.1, status="feasible", bound_from="work")  # fmt: skip
    wide = replace(one.lanes[0], width=3, load=0.99)
    yield "one wide lane", replace(one, lanes=(wide,))
    away = replace(wide, width_unit="sm", device="gpu", load=0.995)
    gpu = tuple(replace(t, device="gpu", seconds=12e-6 * (t.task == "learn")) for t in one.tasks)
    yield "one GPU", replace(one, lanes=(away,), tasks=gpu)
    names = [t.task for t in one.tasks]
    whole = [replace(t, fused_with=tuple(n for n in names if n != t.task)) for t in one.tasks]
    yield "one call", replace(one, tasks=tuple(whole))


def loads(plan: Plan, gpu: float, cpu: float) -> Plan:
    """With other loads of the two devices."""
    new = {"gpu0/0": gpu, "cpu/0": cpu}
    return replace(plan, lanes=tuple(replace(k, load=new.get(k.lane, k.load)) for k in plan.lanes))


def with_tasks(plan: Plan, changes: Mapping[str, Mapping[str, Any]]) -> Plan:
    """With other fields of some tasks."""
    tasks = tuple(replace(t, **changes.get(t.task, {})) for t in plan.tasks)
    return replace(plan, tasks=tasks)


def copies(plan: Plan) -> Plan:
    """With two copies of the step, on two lanes of the CPU."""
    step, cpu = plan.task("step"), plan.lanes[0]
    pair = [replace(step, replicas=2, replica=n, shares=(5, 3), lane=f"cpu/{n}") for n in (0, 1)]
    tasks = (plan.tasks[0], *pair, *plan.tasks[2:])
    entries = tuple(replace(e, replica=1) for e in cpu.order if e.task == "step")
    second = replace(cpu, lane="cpu/1", order=entries, load=0.24)
    return replace(plan, tasks=tasks, lanes=(cpu, second, *plan.lanes[1:]))


def other_edges(plan: Plan) -> tuple[Channel, ...]:
    """With reaches, a second edge between two tasks, an edge to itself, and one to nothing."""
    first, *rest = plan.edges
    return (
        replace(first, reach=2), replace(first, reach=None, bytes=64.0),
        replace(first, dst=first.src), replace(first, dst="none"), *rest,
    )  # fmt: skip


def runs() -> Iterator[tuple[str, Run]]:
    """Yield the name and the run of each case; the first is that of the others."""
    two = two_device_plan()
    first = example_run(two)
    kept = recorded(two)

    def returns(**changed: Any) -> Run:
        return replace(first, returns={**first.returns, **changed})

    yield "run", first
    yield "failed", replace(first, status="failed", message="a loss is not finite")
    yield "failed, no reason", replace(first, status="failed")
    yield "interrupted", replace(first, status="interrupted", out="runs/mine")
    yield "stopped", replace(first, status="stopped", stopped=StoppedBy("Enough", 12_345),
                             solution=SOLVED)  # fmt: skip
    yield "no episode", returns(eval_mean=None, mean_last_20=None)
    yield "no evaluation", returns(eval_mean=None, episodes=None)
    yield "last is best", returns(best_is_last=True)
    yield "one evaluated", returns(last_eval_mean=None)
    yield "hardly forgotten", returns(last_eval_mean=449.0)
    yield "not forgotten", returns(last_eval_mean=448.65)
    yield "below zero", returns(eval_mean=-100.0, last_eval_mean=-110.5)
    yield "solved", replace(first, solution=SOLVED)
    yield "solved late", replace(first, solution=replace(SOLVED, threshold_s=4.5, plan_s=0.0))
    late = replace(SOLVED, threshold_s=4.5)
    yield "planned long", replace(first, solution=replace(late, plan_s=0.75, bind_s=0.1))
    yield "compiled long", replace(first, solution=replace(late, plan_s=0.05, bind_s=1.0))
    yield "not solved", replace(first, solution=replace(SOLVED, threshold_s=None, threshold=499.0))
    mean = replace(SOLVED, threshold_s=None, threshold=498.5, best_mean=None)
    yield "threshold of the mean", replace(first, solution=mean)
    yield "no threshold", replace(first, solution=replace(
        SOLVED, threshold=None, threshold_s=None, threshold_env_steps=None))  # fmt: skip
    for waited, predicted in ((0.09, 5e-4), (0.1, 5e-4), (0.5, 5e-4), (0.9, 5e-4)):
        drift = Drift(predicted, 1.2 * predicted, 0.2, (), waited=waited)
        yield f"waited {waited}", replace(first, drift=drift, solution=late, **kept)
    tasks = (TaskDrift("learn", 1e-3, 1.151e-3, 0.151), TaskDrift("step", 1.0, 1.15, 0.15))
    drift = Drift(5e-4, 6e-4, 0.2, tasks, ("planned again",), 1.25, 0.01, ("learned",))
    yield "drifted", replace(first, drift=drift)
    little = replace(drift, tasks=tasks[1:], off=0.15, apart=None, waited=0.009)
    yield "drifted a little", replace(first, drift=little)
    yield "not measured", replace(first, drift=replace(drift, measured_s=None, off=None))
    lags = {"policy_lag": {"0": 10, "1": 90}, "priority_staleness": {"2": 5}}
    yield "lags and events", replace(first, lags=lags, events=("lane cpu/1 died", "again"))
    yield "slow", replace(first, env_steps_per_s=6_000.0)
    yield "fast", replace(first, env_steps_per_s=60_000.0)
    yield "no bands", replace(first, plan=replace(two, bands=None))
    yield "no rate", replace(first, env_steps_per_s=None, env_steps_per_cpu_s=None, steady={})
    yield "simulated", replace(first, simulated=True, energy_j=None, energy_source=None)
    yield "metered", replace(first, energy_source="nvml")
    yield "metered in part", replace(first, energy_source="modelled+nvml")
    yield "recovered", replace(first, restarts=3, lost_transitions=64)
    yield "untimed", replace(first, tasks=tuple(replace(t, measured_s=None) for t in first.tasks))
    yield "not profiled", replace(first, tasks=tuple(
        replace(t, profiled=False, flops=1e6, bytes=1e5) for t in first.tasks))  # fmt: skip
    yield "recorded", replace(first, **kept)
    yield "waiting", replace(first, **{**kept, "lanes": waiting(kept["lanes"], 0.6)})
    yield "link", replace(first, plan=replace(two, bottleneck=Bottleneck("link", "cpu-gpu0", ())))
    ring = Bottleneck("cycle", "a ring", ("act", "step"))
    yield "cycle", replace(first, plan=loads(replace(two, bottleneck=ring), 0.9, 0.5))
    yield "note", replace(first, plan=replace(two, note="no second lane"))
    one = fused_plan()
    yield "one lane", example_run(one, **recorded(one))
    call = "sample+learn+priorities"
    timed = (*example_run(one).tasks, TaskTiming(call, 3.6e-5, 4e-5, 50_000))
    step = CallTime("step", 6250, 1.0, 0.25, 0.0, 0.0)
    learn = CallTime(call, 50_000, 1.25, 0.0, 0.0, 0.0)
    whole = LaneTime("cpu/0", 3.0, (step, learn), 0.05, 0.3, 0.1, 0.01)
    other = replace(whole, lane="other (node2)", python_s=0.0, calls=(step,), runtime_s=0.0)
    yield "fused call", example_run(one, tasks=timed, lanes=(whole, other), solution=SOLVED)
    short = replace(SOLVED, end_s=400.0, plan_s=0.0, bind_s=0.0, evaluation_s=399.0)
    yield "short training", example_run(one, tasks=timed, lanes=(whole,), solution=short)


def waiting(lanes: Any, share: float) -> tuple[LaneTime, ...]:
    """With a share of the time of each lane spent in waiting for others."""
    found = []
    for k in lanes:
        wait = (share * (k.wall_s - k.held_s) - k.waiting_s) / (1 - share)
        calls = (replace(k.calls[0], waiting_s=k.calls[0].waiting_s + wait), *k.calls[1:])
        found.append(replace(k, calls=calls, wall_s=k.wall_s + wait))
    return tuple(found)


def plan_reports() -> Iterator[tuple[str, Report]]:
    """Yield reports of plans; the first is that of the others."""
    two = two_device_plan()
    yield from ((name, Report(plan)) for name, plan in plans())
    yield "system", Report(two, system=SYSTEM)
    yield "simulated host", Report(replace(two, simulated=("cpu",)), system=SYSTEM)
    slow = replace(two, value=8_000.0, power_w=70.0, pace_s=1e-3)
    yield "front", Report(two, front=[slow, two])


def run_reports() -> Iterator[tuple[str, Report]]:
    """Yield reports of runs; the first is that of the others."""
    two = two_device_plan()
    yield from ((name, Report(run.plan, run)) for name, run in runs())
    run = example_run(two, solution=replace(SOLVED, threshold=100.0))
    work = tuple(replace(t, flops=4e5, bytes=2e5) for t in run.tasks)
    short: Any = SimpleNamespace(
        name="fast", algorithm=SimpleNamespace(name="sac", env="Pendulum-v1"), platform=PLACE
    )
    yield "system", Report(two, replace(run, tasks=work), short)
    rows = tuple({"env_steps": 100.0 * i, "eval_mean": float(i), "eval_low": 0.5, "eval_high": 60.0}
                 for i in range(9))  # fmt: skip
    for name, best in (("kept", 498.5), ("forgotten", 130.3), ("not quite", 130.2)):
        told = {**run.returns, "eval_mean": best, "last_eval_mean": 117.2}
        yield f"curve, {name}", Report(two, replace(run, returns=told), metrics=rows)
    unsolved = replace(run, solution=None, returns={})
    yield "curve, unsolved", Report(two, unsolved, metrics=rows)
    yield "no curve", Report(two, unsolved, metrics=rows[:1])


def comparisons() -> Iterator[tuple[str, SideBySide]]:
    """Yield plans and runs side by side."""
    two, one = two_device_plan(), fused_plan()
    rows = tuple({"env_steps": 100.0 * i, "mean_return_20": float(i)} for i in range(9))
    a = side_of_run(Report(two, example_run(two, solution=SOLVED, out="runs/a"), metrics=rows))
    drift = Drift(5e-4, 6e-4, 0.2, (), waited=0.12)
    told = {"mean_last_20": 12.5}
    b = side_of_run(Report(one, example_run(
        one, returns=told, drift=drift, env_steps_per_s=9_000.0,
        solution=replace(SOLVED, threshold_s=None)), metrics=rows[:1]))  # fmt: skip
    c = replace(a, name="c", run=replace(a.run, returns={}, solution=None))  # type: ignore[type-var]
    yield "runs", SideBySide((a, b))
    yield "runs alike", SideBySide((a, replace(a, name="a2"), c))
    yield "plans", SideBySide((side_of_plan("x", two), side_of_plan("y", one)))
    other = replace(copies(two), spec_sha256="1" * 64, bands=None, rates={}, simulated=("gpu0",))
    yield "five plans", SideBySide(tuple(side_of_plan(f"p{n}", other) for n in range(5)))
    near = replace(two, bands=None, rates={**two.rates, "env_steps_per_s": 16_320.0})
    yield "a gain", SideBySide((side_of_plan("x", two), side_of_plan("y", near)))
    none = replace(example_run(two), env_steps_per_s=None)
    yield "no rates", SideBySide(tuple(Side(n, two, none) for n in ("u", "v")))


def rounded(value: Any, digits: int) -> Any:
    """With so many digits of every number: functions of numpy differ in the last between CPUs."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {str(k): rounded(v, digits) for k, v in value.items()}
    return [rounded(v, digits) for v in value] if isinstance(value, list | tuple) else value


def sum_of(text: str) -> str:
    """What is kept of a long text that other texts have letter by letter: its checksum."""
    return f"…{zlib.crc32(text.encode()):08x}…"


def bare(page: str, *, drawings: bool = False) -> str:
    """A page without its style, and with a checksum in each drawing unless drawings are asked."""
    styled = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    if drawings:
        return styled
    drawing = r"(<svg[^>]*>)(.*?)(</svg>)"
    return re.sub(drawing, lambda m: m[1] + sum_of(m[2]) + m[3], styled, flags=re.DOTALL)


Cases = Iterator[tuple[str, Report | SideBySide]]

PAGES: dict[str, Callable[[], Cases]] = {
    "plans.txt": plan_reports,
    "runs.txt": run_reports,
    "side_by_side.txt": comparisons,
}


PART = re.compile(r"( · |[.;:|] ?| {2,})")
"""What stands between two parts of a line."""
LONG = 12
"""Characters from which on what is known of a line is left out."""


def parts(lines: Iterable[str]) -> set[str]:
    return {part.strip() for line in lines for part in PART.split(line)}


def unsaid(line: str, before: set[str]) -> str:
    """Return a line with `…` for all that is known of it; empty where it holds nothing new."""
    pieces, found, known = PART.split(line), "", ""
    if all(p.strip("─ ") in before for p in pieces[::2]):
        return ""
    for part, after in zip(pieces[::2], [*pieces[1::2], ""], strict=True):
        if part.strip() in before:
            known += part + after
        else:
            found += ("…" if len(known) >= LONG else known) + part + after
            known = ""
    return found + ("…" if len(known) >= LONG else known)


def news(cases: Iterable[tuple[str, list[str]]], *known: list[str]) -> dict[str, list[str]]:
    """Return what each of these cases says that neither `known` nor a case before it says, and how
    many lines of the first one it lacks."""
    before, first, found = parts(line for lines in known for line in lines) | {""}, None, {}
    for name, lines in cases:
        first = first or lines
        said = [text for line in lines if (text := unsaid(line, before))]
        found[name] = [f"{len(set(first) - set(lines))} lines less", *said]
        before |= parts(lines)
    return found


@cache
def told(file: str) -> dict[str, list[str]]:
    """Return what the page of each case of a file says."""
    return {name: words(made.page()) for name, made in PAGES[file]()}


def first(file: str) -> list[str]:
    """Return the whole page of the first case of a file."""
    return next(iter(told(file).values()))


def known(file: str) -> list[list[str]]:
    """Return the pages of other files that come before those of a file."""
    return [first(f) for f in {"runs.txt": (), "plans.txt": ("runs.txt",)}.get(file, BOTH)]


BOTH = ("runs.txt", "plans.txt")


@cache
def said(file: str) -> dict[str, list[str]]:
    """Return what each page of a file says that no page before has said."""
    return news(told(file).items(), *known(file))


def listed(cases: Mapping[str, list[str]]) -> str:
    return "".join(f"## {name}\n" + "".join(f"{x}\n" for x in said) for name, said in cases.items())


def kept(file: str) -> dict[str, str]:
    """Return what is kept of each case."""
    text = (FOLDER / file).read_text(encoding="utf-8")
    pieces = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))
