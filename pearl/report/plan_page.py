"""The page of a plan: key figures, sections with figures, and details."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl.formatting import band, count, percent, si
from pearl.planning.plans import CLOSED, Plan
from pearl.report import origin, tables, words
from pearl.report.bands_text import gap_text, proof_text, range_text
from pearl.report.document import Block, Column, Detail, Facts, KeyFigure, Section, Sentences, Table
from pearl.report.figures.bars import BarRow, bar_chart
from pearl.report.figures.graph import task_graph
from pearl.report.figures.roofline import roofline
from pearl.report.figures.timeline import timeline
from pearl.report.lead import percent as rounded_percent

if TYPE_CHECKING:
    from pearl.planning.runs import Run
    from pearl.spec.system import StaticSpec
    from pearl_devices import Platform


def heading(plan: Plan, system: StaticSpec | None, what: str) -> tuple[str, str]:
    """Return title and subtitle: the name of the spec, then its kind and contents."""
    if system is None:
        return f"{what.capitalize()} for {plan.host}", what_it_is(plan, None, what)
    return system.name, what_it_is(plan, system, what)


def what_it_is(plan: Plan, system: StaticSpec | None, what: str) -> str:
    """Return one line: kind of page, algorithm, environment, devices."""
    parts = ["Plan, nothing has run yet" if what == "plan" else "Training run"]
    if system is not None:
        name = system.algorithm.name.replace("_", "-")
        name = name.upper() if len(name) < 5 else name[:1].upper() + name[1:]
        parts.append(f"{name} on {system.algorithm.env}")
    devices = []
    for device in dict.fromkeys(t.device for t in plan.tasks):
        found = None
        if system is not None:
            found = next((d for d in system.platform.devices if d.name == device), None)
        name = words.device_name(device, plan.simulated)
        cores = sum(k.width for k in plan.lanes if k.device == device and k.width_unit == "cores")
        size = f" ({count(cores)} core{'s' if cores > 1 else ''})" if cores else ""
        devices.append(f"{(found.model if found else '') or name}{size}")
        if found is not None and found.model and device in plan.simulated:
            devices[-1] += " (simulated)"
    return " · ".join([*parts, ", ".join(devices)])


def key_figures(plan: Plan) -> tuple[KeyFigure, ...]:
    """Return speed, learning, iteration, power, efficiency and proof, with their bands."""
    b, found = plan.bands, []
    closed = any(t.rung == CLOSED for t in plan.tasks)

    def figure(label: str, value: float | None, unit: str, ends: object, note: str = "") -> None:
        if value is None or not value:
            return
        si_unit = unit in ("s", "W", "J")
        text = si(value, unit) if si_unit else f"{count(value)} {unit}"
        shown, _, symbol = text.partition(" ")
        whisker = None
        if isinstance(ends, tuple) and ends[0] < ends[1] and not closed:
            whisker = (ends[0], value, ends[1])
            limits = band(ends[0], ends[1], unit) if si_unit else range_text(ends)
            note = ", ".join(part for part in (limits, note) if part)
        found.append(KeyFigure(label, shown, symbol, note, whisker))

    if plan.value_unit == "s":
        figure("first iteration", plan.value, "s", None)
    figure("speed", plan.rates.get("env_steps_per_s"), "env steps/s", b and b.env_steps_per_s)
    updates = plan.rates.get("updates_per_s")
    figure("learning", updates, "learn steps/s", b and b.updates_per_s)
    figure("one iteration", plan.period_s, "s", b and b.period_s)
    figure("power", plan.power_w, "W", b and b.power_w, "modelled")
    figure("efficiency", plan.env_steps_per_j, "env steps/J", b and b.env_steps_per_j)
    proved = plan.status == "optimal"
    note = "by these estimates" if proved else f"gap {gap_text(plan)}"
    found.append(KeyFigure("proof", "none faster" if proved else "not proved", "", note))
    if plan.objective != "throughput" and proved:
        found[-1] = KeyFigure("proof", "the best", "", f"of {plan.objective.replace('_', ' ')}")
    return tuple(found)


def graph_section(plan: Plan) -> Section | None:
    """Return the section on the place of each task and its dependences."""
    figure = task_graph(plan)
    if figure is None:
        return None
    devices = list(dict.fromkeys(t.device for t in plan.tasks))
    calls = {frozenset((t.task, *t.fused_with)) for t in plan.tasks}
    single = len(devices) == 1
    if single and len(calls) == 1 and len(plan.tasks) > 1:
        finding = f"Everything runs on {_place(plan)}, as one compiled call."
    elif single:
        finding = f"Everything runs on {_place(plan)}."
    else:
        from pearl.report.lead import where

        text = where(plan).removeprefix("with ")
        finding = f"{text[:1].upper()}{text[1:]}."
    guide = (
        "Each task has the time of one call and its calls per iteration. A number on an edge gives "
        "the results that a call makes or reads, if it is not 1."
    )
    title = "What depends on what" if single else "Who does what"
    return Section(title, finding, guide, (figure, _meanings(plan)))


def _place(plan: Plan) -> str:
    cores = sum(k.width for k in plan.lanes if k.width)
    unit = next((k.width_unit for k in plan.lanes if k.width), "")
    if unit == "cores":
        return f"{count(cores)} CPU core{'s' if cores > 1 else ''}"
    from pearl.report.lead import the_device

    return the_device(plan, plan.tasks[0].device)


def _meanings(plan: Plan) -> Sentences:
    """Return what each task does, and the parts of a fused call."""
    tasks = dict.fromkeys(t.task for t in plan.tasks)
    rows = [(task, words.meaning(task)) for task in tasks]
    if plan.evaluation is not None:
        e = plan.evaluation
        how = "in a separate process" if e.apart else "while the others wait"
        rows.append(("evaluate", f"plays test episodes {how}, 1 in {count(e.every)} iterations"))
    seen: set[frozenset[str]] = set()
    for t in plan.tasks:
        call = frozenset((t.task, *t.fused_with))
        if len(call) > 1 and call not in seen:
            seen.add(call)
            names = [words.task_word(p) for p in plan.tasks if p.task in call and not p.replica]
            name = words.call_name(plan, [p.task for p in plan.tasks if p.task in call])
            rows.append((name, f"is one call of {', '.join(names)}"))
    return Sentences("", tuple(rows), inline=True)


def timeline_section(plan: Plan, platform: Platform | None) -> Section | None:
    """Return the section on two predicted iterations."""
    figure = timeline(plan, None, platform)
    if figure is None:
        return None
    lanes = [k for k in plan.lanes if k.width]
    busiest = max(lanes, key=lambda k: k.load)
    name = words.lane_name(plan, busiest.lane)
    if len(lanes) == 1:
        gap = "has no gap to fill" if busiest.load > 0.995 else f"waits {percent(1 - busiest.load)}"
        finding = f"The {name} {gap}."
    else:
        least = min((k for k in lanes if k is not busiest), key=lambda k: k.load)
        finding = (
            f"The {name} is busy {rounded_percent(busiest.load)} of the time, "
            f"the {words.lane_name(plan, least.lane)} {rounded_percent(least.load)}."
        )
    guide = "Hatched: waiting. The order and the times of the plan determine the positions."
    return Section("Two steady iterations", finding, guide, (figure,), brief=True)


def load_section(plan: Plan) -> Section | None:
    """Return the section on the load of lanes and links; None for a single lane."""
    if len(plan.lanes) < 2:
        return None
    bars = []
    for k in sorted(plan.lanes, key=lambda k: bool(not k.width)):
        name = words.lane_name(plan, k.lane)
        style = f"fill {words.colour(plan, k.device)}" if k.width else "fill muted"
        bars.append(BarRow(name, k.load, percent(k.load), style=style))
    figure = bar_chart(bars, "Busy share of an iteration.", largest=1.0)
    messages = [(k, len(k.order)) for k in plan.lanes if not k.width]
    finding = ""
    if messages:
        total = sum(n for _, n in messages)
        size = sum(e.bytes * _calls(plan, e.src) for e in plan.edges if e.link)
        finding = (
            f"The link carries {count(total)} message{'' if total == 1 else 's'} per iteration, "
            f"about {si(size, 'B')}."
        )
    return Section("How busy", finding, "", (figure,) if figure else ())


def _calls(plan: Plan, task: str) -> int:
    return next((t.firings for t in plan.tasks if t.task == task), 1)


def roofline_section(
    plan: Plan, run: Run | None = None, platform: Platform | None = None
) -> Section | None:
    """Return the kernels under the roofs of their devices, as planned, or as a run measured
    them."""
    figure = roofline(plan, run, platform)
    if figure is None:
        return None
    most = max(plan.tasks, key=lambda t: t.share_of_period)
    finding = f"{most.task.capitalize()} is bound by {most.bound_by}."
    guide = (
        f"A dot is one call: its arithmetic over its {'measured' if run else 'predicted'} time, "
        "against its least number of moved bytes. The line is the highest rate of the device, by "
        "its figures in Details."
    )
    return Section("Kernels under their roof", finding, guide, (figure,))


def details(
    plan: Plan, platform: Platform | None, more: tuple[Detail, ...] = ()
) -> tuple[Detail, ...]:
    """Return all numbers: tasks, lanes, edges, the proof, words, sources."""
    simulated = plan.simulated
    every = tables.edges(plan)
    facts = Facts("", tables.plan_facts(plan)).marked(simulated)
    found = [
        Detail("Every task: variant, band, source of its estimate",
               (tables.assignment(plan).marked(simulated),)),
        Detail("The order of calls", (tables.lanes(plan).marked(simulated),)),
    ]  # fmt: skip
    if every is not None:
        found.append(Detail(f"All {len(every.rows)} edges", (every.marked(simulated),)))
    if plan.rollout:
        found.append(Detail("Stored part of a rollout", (_rollout(plan),)))
    found.append(Detail("The proof", (facts,), note=proof_text(plan)))
    found += more
    if platform is not None:
        used = {t.device for t in plan.tasks} | {platform.host}
        found.append(Detail("Devices and the sources of their figures",
                            (origin.sources_table(platform, used).marked(simulated),)))  # fmt: skip
    found.append(Detail("Words used here", (_glossary(plan),)))
    return tuple(found)


STORAGE = {
    "whole": "all vector steps",
    "window": "those not yet read, as a ring buffer",
    "none": "one, read at once",
}


def _rollout(plan: Plan) -> Table:
    """Return the arrays of a rollout and their bytes."""
    total = sum(a.bytes for a in plan.rollout)
    rows = [(a.array, STORAGE[a.storage], count(a.rows), si(a.bytes, "B")) for a in plan.rollout]
    rows.append(("together", "", "", si(total, "B")))
    columns = (
        Column("array"), Column("kept"), Column("vector steps", "right"), Column("size", "right"),
    )  # fmt: skip
    return Table("", columns, tuple(rows))


def _glossary(plan: Plan) -> Facts:
    rows = [
        (t, words.meaning(t) or "a task of this graph")
        for t in dict.fromkeys(t.task for t in plan.tasks)
    ]
    rows += [
        (words.ITERATION, "one round of the loop; × gives the number of calls of a task in it"),
        ("call", "one execution of a task, or of several in one compiled function"),
        ("band", "nine in ten measurements are between its ends"),
        ("env steps, learn steps", "steps of the environments, and gradient steps"),
    ]
    return Facts("", tuple(rows))


def short_tables(plan: Plan) -> tuple[Block, ...]:
    """Return the tables of a plan for a terminal: one row per task, at most 80 characters wide."""
    rows, seen = [], set()
    for t in plan.tasks:
        if t.task in seen:
            continue
        seen.add(t.task)
        copies = f" ({t.replicas} copies)" if t.replicas > 1 else ""
        lanes = [p.lane for p in plan.tasks if p.task == t.task]
        place = (
            words.lane_name(plan, lanes[0])
            if any(k.lane == lanes[0] for k in plan.lanes)
            else t.lane
        )
        if len(set(lanes)) > 1:
            place = f"{len(set(lanes))} × {words.device_name(t.device, plan.simulated)}"
        rows.append(
            (f"{words.task_word(t)}{copies}", place, t.variant, si(t.seconds, "s"),
             band(t.low_s, t.high_s, "s"), percent(t.share_of_period))
        )  # fmt: skip
    columns = (
        Column("task"), Column("where"), Column("variant"), Column("a call", "right"),
        Column("90 % band", "right"), Column("share", "right"),
    )  # fmt: skip
    notes = [f"Estimates: {origin.estimates_text(plan)}; {proof_text(plan)}."]
    calls = {frozenset((t.task, *t.fused_with)) for t in plan.tasks if t.fused_with}
    for call in calls:
        name = words.call_name(plan, [t.task for t in plan.tasks if t.task in call])
        if name != words.ITERATION:
            members = [t.task for t in plan.tasks if t.task in call]
            notes.append(f"{', '.join(dict.fromkeys(members))} run as one call ({name}).")
        else:
            notes.append("All tasks run as one compiled call.")
    if plan.note:
        notes.append(plan.note[:1].upper() + plan.note[1:] + ".")
    return (Table("", columns, tuple(rows), tuple(notes)).marked(plan.simulated),)
