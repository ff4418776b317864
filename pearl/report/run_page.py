"""The page of a run: its result, its learning curve, and prediction against measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pearl.formatting import NONE, count, number, percent, ratio, si
from pearl.planning.lane_times import LaneTime
from pearl.planning.metrics_file import Row
from pearl.planning.runs import Run
from pearl.report import tables, words
from pearl.report.bands_text import range_text
from pearl.report.document import Block, Column, Detail, Facts, KeyFigure, Section, Sentences, Table
from pearl.report.figures.bars import Part, stacked_bar, stacked_bars
from pearl.report.figures.curves import learning_curve, points_of
from pearl.report.figures.ratios import comparisons, ratio_chart
from pearl.report.figures.timeline import timeline
from pearl.report.kept_calls import measured_schedule
from pearl.report.lane_time import HELD, lane_table, lane_word, time_rows
from pearl.report.lead import percent as rounded_percent
from pearl.report.lead import waited

if TYPE_CHECKING:
    from pearl_devices import Platform

APART = (
    "Tasks of a fused call were timed one by one, which lengthens short ones; their part of the "
    "time is their part of the call."
)
"""The note on the times of members of a fused call."""


def parts_were_timed_apart(run: Run) -> bool:
    """Whether the run has a fused call whose members were timed apart."""
    return any(t.profiled for t in run.tasks) and any("+" in t.task for t in run.tasks)


def key_figures(run: Run) -> tuple[KeyFigure, ...]:
    """Return the key figures: return, time to solution, speed, duration, memory and energy."""
    returns, solution, found = run.returns, run.solution, []
    mean = returns.get("eval_mean")
    if mean is not None:
        episodes = len(returns.get("eval_returns") or ())
        found.append(
            KeyFigure("best return", number(mean), "", f"mean of {episodes} test episodes")
        )
    elif returns.get("mean_last_20") is not None:
        note = "mean of the last 20 training episodes"
        found.append(KeyFigure("return", number(returns["mean_last_20"]), "", note))
    if solution is not None and solution.threshold is not None:
        if solution.threshold_s is not None:
            value, _, unit = si(solution.threshold_s, "s").partition(" ")
            note = f"{solution.threshold:g} at step {count(solution.threshold_env_steps)}"
            found.append(KeyFigure("solved after", value, unit, note))
        else:
            found.append(KeyFigure("solved", "no", "", f"{solution.threshold:g} was not reached"))
    clock = "simulated" if run.simulated else "measured"
    if run.env_steps_per_s:
        ends = run.plan.bands and run.plan.bands.env_steps_per_s
        note = f"{clock}; band {range_text(ends)}" if ends else clock
        found.append(KeyFigure("speed", count(run.env_steps_per_s), "env steps/s", note))
    end_s = solution.end_s if solution is not None else run.wall_s
    value, _, unit = si(end_s, "s").partition(" ")
    found.append(KeyFigure("whole run", value, unit, f"{count(run.env_steps)} env steps, {clock}"))
    value, _, unit = si(run.peak_rss_bytes, "B").partition(" ")
    cores = sum(k.width for k in run.plan.lanes if k.width_unit == "cores")
    note = f"{count(cores)} core{'s' if cores > 1 else ''} used, measured"
    found.append(KeyFigure("peak memory", value, unit, note))
    if run.energy_j is not None:
        value, _, unit = si(run.energy_j, "J").partition(" ")
        source = run.energy_source or ""
        note = source if source == "modelled" else f"measured, {source}"
        if "modelled" in source and source != "modelled":
            note = f"partly modelled, {source}"
        found.append(KeyFigure("energy", value, unit, note))
    return tuple(found)


def learning_section(run: Run, rows: Sequence[Row]) -> Section | None:
    """Return the section on the learning curve."""
    figure = learning_curve(rows, run)
    if figure is None:
        return None
    solution, tests = run.solution, points_of(rows, "eval_mean", changes=True)
    finding = ""
    if solution is not None and solution.threshold_env_steps is not None:
        finding = f"Solved at {count(solution.threshold_env_steps)} env steps"
        last = run.returns.get("last_eval_mean")
        best = run.returns.get("eval_mean")
        if last is not None and best and last < 0.9 * best:
            finding += ", and forgotten by the end"
        finding += "."
    elif tests:
        best_at, best_mean = max(tests, key=lambda p: p[1])
        finding = f"Best evaluation: {number(best_mean)} at {count(best_at)} env steps."
    guide = "Dots: evaluations of the greedy policy."
    if any("eval_low" in r for r in rows):
        guide += " Bars: from their worst to their best episode."
    if run.returns.get("eval_returns"):
        guide += " Right: the final test, with the range of its episodes."
    return Section("Learning", finding, guide, (figure,), brief=True)


def timeline_section(run: Run, platform: Platform | None) -> Section | None:
    """Return the section on two iterations, predicted above and measured below."""
    figure = timeline(run.plan, run, platform)
    if figure is None:
        return None
    kept, taken = measured_schedule(run), waited(run)
    lanes = [k for k in run.plan.lanes if k.width]
    guide = "Predicted above, measured below. Hatched: waiting."
    if kept is None:
        guide = "Predicted; the run recorded no calls. Hatched: waiting."
        finding = f"By the plan, an iteration takes {si(run.plan.period_s, 's')}."
    elif taken >= 0.1:
        finding = f"Other programs used the core for {rounded_percent(taken)} of the time."
    elif len(lanes) == 1 and lanes[0].load > 0.995:
        finding = f"The {words.lane_name(run.plan, lanes[0].lane)} has no gap to fill."
    else:
        busiest = max(lanes, key=lambda k: k.load)
        name = words.lane_name(run.plan, busiest.lane)
        finding = f"The {name} is busy {rounded_percent(busiest.load)} of the time, predicted."
    if kept is not None:
        guide += " Measured: two iterations of median length, as they happened"
        fused = any("+" in c.call for c in run.calls)
        guide += "; a fused call is one box." if fused else "."
    return Section("Two steady iterations", finding, guide, (figure,), brief=True)


def ratio_section(run: Run) -> Section | None:
    """Return the section on prediction against measurement."""
    figure, rows = ratio_chart(run), comparisons(run)
    if figure is None:
        return None
    source = "simulated" if run.simulated else "measured"
    whole = rows[0]
    if whole.name == words.ITERATION:
        finding = f"The iteration took {whole.ratio:.2f} × its prediction"
        if whole.has_band:
            finding += f", {'inside' if whole.inside else 'outside'} the 90 % band"
        finding += "."
    else:
        off = sum(not r.inside for r in rows)
        finding = f"{off} of {len(rows)} tasks are outside their band."
    guide = f"Dot: {source}; grey with whiskers: the 90 % band of the prediction."
    if any(r.share < 0.05 for r in rows):
        guide += " Hollow: under 5 % of the time, so an error there costs little."
    if parts_were_timed_apart(run):
        guide += f" {APART}"
    blocks: list[Block] = [figure]
    return Section("Prediction and measurement", finding, guide, tuple(blocks))


def time_parts(run: Run) -> list[Part]:
    """Return the seconds of a run: the work of its training lane, and the rest of the run."""
    solution = run.solution
    end_s = solution.end_s if solution is not None else run.wall_s
    apart = [
        ("planning", solution.plan_s, "grey t10"), ("compiling", solution.bind_s, "grey t6"),
        ("evaluation", solution.evaluation_s, "grey t4"),
        ("checkpoints", solution.checkpoint_s, "grey t4"),
    ] if solution is not None else []  # fmt: skip
    training = max(end_s - sum(s for _, s, _ in apart), 0.0)
    taken = waited(run) * training
    home = next((k for k in run.lanes if k.python_s > 0), None)
    if home is None:
        parts = [Part("training", training - taken, "d0 t10")]
    else:
        inside = lane_parts(run, home, held=False)
        whole = sum(p.seconds for p in inside) or 1.0
        scale = (training - taken) / whole
        parts = [Part(p.name, p.seconds * scale, p.style) for p in inside]
        small = [p for p in parts if p.seconds < 0.02 * end_s]
        if len(small) == len(parts):
            parts = [Part("training", training - taken, parts[0].style)]
        elif len(small) > 1:
            parts = [p for p in parts if p not in small]
            parts.append(Part("rest of training", sum(p.seconds for p in small), small[0].style))
    parts += [Part(name, seconds, style) for name, seconds, style in apart]
    if taken > 0:
        parts.append(Part("waiting for a core", taken, "hatch"))
    return parts


def lane_parts(run: Run, lane: LaneTime, *, held: bool = True) -> list[Part]:
    """Return the time of a lane: its tasks, then other work, and waiting last.

    held: include the time in which the lane was held.
    """
    rows, waiting_s, parts = time_rows(run, lane), 0.0, list[Part]()
    for r in rows:
        if r.name == HELD and not held:
            continue
        stood_s = r.waiting_s if r.name != HELD else 0.0
        waiting_s += stood_s
        parts.append(Part(r.name, r.seconds - stood_s, r.style))
    return [*parts, Part("waiting", waiting_s, "hatch")]


def time_section(run: Run) -> Section | None:
    """Return the section on the seconds of the run; None for a simulated run."""
    if run.simulated:
        return None
    parts = time_parts(run)
    figure = stacked_bar(parts)
    if figure is None:
        return None
    total = sum(p.seconds for p in parts)
    apart = {"planning", "compiling", "evaluation", "checkpoints", "waiting for a core"}
    training = sum(p.seconds for p in parts if p.name not in apart)
    largest = max((p for p in parts if p.name in apart), key=lambda p: p.seconds, default=None)
    finding = f"{si(total, 's')}: {rounded_percent(training / total)} training"
    if largest is not None and largest.seconds > 0:
        finding += f", {rounded_percent(largest.seconds / total)} {largest.name}"
    guide = "The whole run."
    if run.solution is not None and run.solution.plan_s > 0.05 * total:
        guide += " `--plan plan.json` reuses the plan."
    blocks: list[Block] = [figure]
    if len(run.lanes) > 1:
        bars = [(lane_word(run, k.lane), lane_parts(run, k)) for k in run.lanes]
        each = stacked_bars(bars)
        blocks += [each] if each else []
        guide += " Below: each core and device; hatched: it waited for another."
    return Section("Where the time went", f"{finding}.", guide, tuple(blocks))


def details(run: Run) -> tuple[Detail, ...]:
    """Return the run and its times in numbers."""
    found = [
        Detail("The run in numbers", (Facts("", tables.run_facts(run)).marked(run.plan.simulated),))
    ]
    compared = tables.comparison(run)
    found.append(Detail("Prediction and measurement in numbers",
                        tuple(t.marked(run.plan.simulated) for t in compared)))  # fmt: skip
    if (table := lane_table(run)) is not None:
        found.append(Detail("Where the time went in numbers", (table.marked(run.plan.simulated),)))
    return tuple(found)


def short_tables(run: Run) -> tuple[Block, ...]:
    """Return the tables of a run for a terminal: its facts, then tasks, predicted and measured."""
    source = "simulated" if run.simulated else "measured"
    predicted, rate = run.predicted_env_steps_per_s, run.env_steps_per_s
    head = [("rate", f"{count(rate)} env steps/s {source}, {count(predicted)} predicted "
             f"({ratio(rate, predicted)} x)")]  # fmt: skip
    if run.env_steps_per_cpu_s is not None:
        head.append(("", f"{count(run.env_steps_per_cpu_s)} env steps per CPU-second"))
    if run.out is not None:
        head.insert(0, ("folder", run.out))
    facts = dict(tables.run_facts(run))
    kept = ("status", "return", "evaluation", "failures", "recovered failures", "devices", "energy")
    head += [(key, facts[key]) for key in kept if key in facts]
    if run.drift is not None:
        head += [("re-planning", text) for text in run.drift.decisions]
    rows = [
        (r.name, si(r.predicted_s, "s"), si(r.measured_s, "s"), f"{r.ratio:.2f}",
         ("yes" if r.inside else "no") if r.has_band else NONE,
         "100 %" if r.name == words.ITERATION else percent(r.share))
        for r in comparisons(run)
    ]  # fmt: skip
    columns = (
        Column("a call of"), Column("predicted", "right"), Column(source, "right"),
        Column("ratio", "right"), Column("in band"), Column("of the time", "right"),
    )  # fmt: skip
    notes = []
    if parts_were_timed_apart(run):
        notes.append(APART)
    if run.drift is not None and run.drift.off is not None and abs(run.drift.off) > 0.15:
        named = tuple(
            replace(t, task=words.call_name(run.plan, t.task.split("+"))) for t in run.drift.tasks
        )
        notes.append(tables.drift_sentence(replace(run.drift, tasks=named)))
    if run.plan.note:
        notes.append(f"{run.plan.note[:1].upper()}{run.plan.note[1:]}.")
    table = Table("", columns, tuple(rows), tuple(notes)).marked(run.plan.simulated)
    blocks: list[Block] = [Facts("", tuple(head)).marked(run.plan.simulated)]
    if rows or notes:
        blocks.append(table if rows else Sentences("", tuple(("", note) for note in notes)))
    return tuple(blocks)
