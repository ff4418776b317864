"""The content of a report before it is drawn: facts, sentences and tables of ready text.

The terminal and the HTML page show these objects, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from pearl.formatting import NONE, WORD, band, count, listed, percent, ratio, si
from pearl.planning.plans import CLOSED, Channel, Entry, Lane, Placement, Plan
from pearl.planning.runs import TOLERANCE, Drift, Run
from pearl.report import words
from pearl.report.bands_text import (
    band_facts,
    proof_text,
    regret_clause,
    regret_text,
    value_band_text,
)
from pearl.report.document import Column, Table
from pearl.report.evaluation_text import evaluation_row, evaluation_sentence, time_to_solution_text
from pearl_estimators.power import draws_by_work


def _value(value: float, unit: str) -> str:
    return si(value, unit) if unit in ("s", "J", "W") else f"{count(value)} {unit}"


def plan_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return label and text of the facts at the head of a report about a plan."""
    predicted = _value(plan.value, plan.value_unit) + value_band_text(plan)
    period = f"{si(plan.period_s, 's')} per iteration, at least {si(plan.bound_s, 's')}"
    if plan.objective == "makespan":
        predicted += f" until the first iteration is complete, at least {si(plan.bound_value, 's')}"
        period = f"{si(plan.period_s, 's')} per iteration for consecutive iterations"
    facts = [
        ("predicted", predicted),
        ("objective", plan.objective.replace("_", " ") + regret_clause(plan.regret)),
        ("status", proof_text(plan)),
        ("method", f"{plan.method}, seed {plan.seed}, solved in {si(plan.solve_s, 's')}"),
        ("period", period),
    ]
    if plan.regret is not None:
        facts.append(("regret", regret_text(plan.regret)))
    if plan.note:
        facts.append(("note", plan.note))
    if plan.pace_s is not None:
        facts.append(("pace", f"an iteration every {si(plan.pace_s, 's')}, to respect a limit"))
    energy = f"{si(plan.energy_per_iteration_j, 'J')} per iteration, {si(plan.power_w, 'W')}"
    if plan.env_steps_per_j is not None:
        energy += f", {count(plan.env_steps_per_j)} env steps/J"
    facts.append(("energy", f"{energy} (modelled)"))
    if used := [d for d in plan.simulated if any(t.device == d for t in plan.tasks)]:
        facts.append((WORD, f"{listed(used)}: times of a model; no such device is driven"))
    return (*facts, *band_facts(plan))


def _ended(run: Run) -> str:
    if run.stopped is not None:
        return f"stopped by {run.stopped.by} at env step {count(run.stopped.env_steps)}"
    return run.status if run.message is None else f"{run.status}: {run.message}"


def unknown_kinds(run: Run) -> str:
    """Return a sentence on devices of the run whose kinds are not known here; empty for none."""
    devices = run.platform.devices if run.platform is not None else ()
    unknown = [f"{d.name} ({d.kind})" for d in devices if draws_by_work(d) is None]
    if not unknown:
        return ""
    return f"of a kind that is not known here, so without their power: {listed(unknown)}"


def run_facts(run: Run) -> tuple[tuple[str, str], ...]:
    """Return label and text of the facts at the head of a report about a run."""
    returns = run.returns
    clock = "simulated time" if run.simulated else "wall"
    facts = [
        ("status", _ended(run)),
        *(
            [("time to solution", time_to_solution_text(run.solution))]
            if run.solution is not None
            else []
        ),
        ("env steps", f"{count(run.env_steps)}, with {count(run.updates)} gradient steps"),
        *(
            [
                (
                    "failures" if run.status == "failed" else "recovered failures",
                    f"{run.restarts}, {run.lost_transitions} transitions lost",
                )
            ]
            if run.restarts
            else []
        ),
        ("time", f"{si(run.wall_s, 's')} {clock}, {si(run.cpu_s, 's')} CPU"),
        ("peak memory", si(run.peak_rss_bytes, "B")),
    ]
    if returns.get("mean_last_20") is not None:
        text = f"{count(returns['mean_last_20'])} mean of the last 20 episodes"
        if returns.get("episodes") is not None:
            text += f" of {count(returns['episodes'])}"
        facts.append(("return", text))
    if returns.get("eval_mean") is not None:
        episodes = len(returns.get("eval_returns") or ())
        text = f"{count(returns['eval_mean'])} mean of {episodes} episodes"
        if returns.get("best_is_last"):
            text += "; the last policy is the best"
        elif returns.get("last_eval_mean") is not None:
            text = (
                f"{count(returns['eval_mean'])} of the best policy, "
                f"{count(returns['last_eval_mean'])} of the last; means of the same "
                f"{episodes} episodes"
            )
        facts.append(("evaluation", text))
    if unknown := unknown_kinds(run):
        facts.append(("devices", unknown))
    if run.energy_j is None:
        facts.append(("energy", "not metered"))
    else:
        source = run.energy_source or ""
        if "modelled" not in source:
            source = f"measured, {source}"
        elif source != "modelled":
            source = f"partly {source.replace('+', ', partly measured, ', 1)}"
        facts.append(("energy", f"{si(run.energy_j, 'J')} over the run ({source})"))
    if run.drift is not None:
        facts += [("re-planning", text) for text in run.drift.decisions]
    decisions = run.drift.decisions if run.drift is not None else ()
    facts += [("event", text) for text in run.events if text not in decisions]
    return tuple(facts)


SIMULATED = (
    "simulated: the times and rates of this run come from the clock of a model; "
    "none was measured on the devices named"
)


UNSHARED = "the call's time is shown for one of them; the split between them is unknown."

NOTABLE = 0.01
"""A smaller share of time without a core is not mentioned."""


def drift_sentence(drift: Drift) -> str:
    """Return the difference of the period from the prediction, and the tasks that differ."""
    away = [t for t in drift.tasks if abs(t.off) > TOLERANCE]
    text = (
        f"An iteration took {si(drift.measured_s, 's')}, "
        f"{ratio(drift.measured_s, drift.predicted_s)} x the predicted "
        f"{si(drift.predicted_s, 's')}; "
    )
    if drift.measured_s is not None and drift.waited is not None and drift.waited >= NOTABLE:
        net_s = drift.measured_s * (1 - drift.waited)
        text += (
            f"for {percent(drift.waited)} of that time, the lane was ready and had no core; "
            f"without that time, the ratio is {ratio(net_s, drift.predicted_s)} x; "
        )
    tasks = [f"{t.task} ({ratio(t.measured_s, t.predicted_s)} x)" for t in away]
    if not drift.tasks:
        return text + "no task was timed."
    verb = "are" if len(tasks) > 1 else "is"
    limit = percent(TOLERANCE).replace(".0", "")
    if drift.apart is not None:
        text += (
            f"two cores took {ratio(drift.apart, 1.0)} x as long to exchange bytes as during the "
            "calibration of this host (a virtual machine was moved to other processors, or other "
            "programs used them); "
        )
    if not tasks:
        return f"{text}no task is off by more than {limit}."
    return f"{text}off by more than {limit} {verb} {listed(tasks)}."


def assignment(plan: Plan) -> Table:
    """Return every task with its place, variant and time."""
    rows: tuple[tuple[str, ...], ...] = tuple(
        (
            f"{t.task}, {t.shares[t.replica]} envs" if t.shares else t.task,
            t.lane,
            f"{t.device}, {t.width} {_unit(t.width_unit, t.width)}",
            t.variant,
            count(t.firings),
            si(t.seconds, "s"),
            "assumed " * (t.rung == CLOSED) + band(t.low_s, t.high_s, "s"),
            percent(t.share_of_period),
            t.rung,
            t.bound_by,
        )
        for t in plan.tasks
    )
    columns = (
        Column("task"),
        Column("lane"),
        Column("device"),
        Column("variant"),
        Column("firings", "right"),
        Column("a firing", "right"),
        Column("90 % band", "right"),
        Column("of period", "right"),
        Column("estimate"),
        Column("bound by"),
    )
    notes = [*_assignment_notes(plan.tasks), *([_sentence(plan.note)] if plan.note else [])]
    if plan.evaluation:
        rows = (*rows, evaluation_row(plan.evaluation))
        notes.append(_sentence(evaluation_sentence(plan.evaluation)))
    return Table("Assignment", columns, rows, tuple(notes))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _unit(unit: str, number: int) -> str:
    return unit.removesuffix("s") if unit == "cores" and number == 1 else unit


def _assignment_notes(tasks: Sequence[Placement]) -> list[str]:
    notes, noted = [], set()
    for t in tasks:
        call = frozenset((t.task, *t.fused_with))
        if t.fused_with and call not in noted:
            noted.add(call)
            members = [x for x in tasks if x.task in call]
            shares_known = all(x.seconds > 0 for x in members)
            notes.append(
                f"{listed([x.task for x in members])} run as one call; "
                + ("each is shown with its share of it." if shares_known else UNSHARED)
            )
        if t.replicas > 1 and t.replica == 0:
            shares = f" with {listed([str(s) for s in t.shares])} environments" if t.shares else ""
            notes.append(f"{t.task} runs as {t.replicas} replicas{shares}.")
        if t.block > 1 and not t.fused_with:
            notes.append(f"{t.task} runs in blocks of {t.block} gradient steps.")
    return notes


def lanes(plan: Plan) -> Table:
    """Return every lane with its order and load."""
    rows = tuple(
        (
            x.lane,
            f"{x.device}, {x.width} {_unit(x.width_unit, x.width)}" if x.width else "link",
            order(plan, x),
            percent(x.load),
        )
        for x in plan.lanes
    )
    columns = (
        Column("lane"),
        Column("device"),
        Column("order", folds=True),
        Column("load", "right"),
    )
    return Table("Lanes", columns, rows, bars=tuple(x.load for x in plan.lanes))


def order(plan: Plan, lane: Lane) -> str:
    """Return the calls of a lane in order, with repeats counted: `step, learn × 8`.

    A fused mode is one call per iteration.
    """
    placed = {(t.task, t.replica): t for t in plan.tasks}

    def call(entry: Entry) -> tuple[tuple[str, ...], int]:
        if (entry.task, entry.replica) not in placed:  # a transfer on a link
            return (entry.task,), entry.offset
        members = {entry.task, *placed[entry.task, entry.replica].fused_with}
        return tuple(dict.fromkeys(t.task for t in plan.tasks if t.task in members)), entry.offset

    parts = []
    for (tasks, offset), group in groupby(lane.order, key=call):
        text, firings = " + ".join(tasks), len(list(group))
        if len(tasks) > 1:
            text += " in one call"
        elif firings > 1:
            text += f" × {firings}"
        parts.append(f"{text} (iteration {offset:+d})" if offset else text)
    return ", ".join(parts) or NONE


def edges(plan: Plan) -> Table | None:
    """Return the edges; None if there are none."""
    if not plan.edges:
        return None
    rows = tuple(
        (
            f"{e.src} → {e.dst}",
            f"{e.production} → {e.consumption}{_reach(e)}",
            _tokens(e),
            NONE if e.capacity is None else count(e.capacity),
            si(e.bytes, "B") if e.bytes else NONE,
            e.link or NONE,
        )
        for e in plan.edges
    )
    columns = (
        Column("edge"),
        Column("rates", "right"),
        Column("tokens", "right"),
        Column("capacity", "right"),
        Column("a firing", "right"),
        Column("link"),
    )
    return Table("Edges", columns, rows)


def _reach(edge: Channel) -> str:
    return "" if edge.reach == 0 else f", t..t+{edge.reach}" if edge.reach else ", t..T"


def _tokens(edge: Channel) -> str:
    return f"{edge.tokens} (slack {edge.slack})" if edge.slack else count(edge.tokens)


def comparison(run: Run) -> tuple[Table, ...]:
    """Return predictions next to measurements: the rates, then the times of timed tasks."""
    source = "simulated" if run.simulated else "measured"
    third = Column(f"{source} / predicted", "right")
    plan_rates = run.plan.rates
    rates = (
        ("env steps/s", run.predicted_env_steps_per_s, run.env_steps_per_s),
        ("gradient steps/s", plan_rates.get("updates_per_s"), run.updates_per_s),
        ("env steps per CPU-second", None, run.env_steps_per_cpu_s),
    )
    heading = (Column(""), Column("predicted", "right"), Column(source, "right"), third)
    steady = run.steady
    note = (
        "The rates cover the steady part of the run: "
        f"{count(steady.get('env_steps'))} env steps in {si(steady.get('wall_s'), 's')}"
    )
    # If other programs used the cores, the difference to the prediction shows here.
    note += "." if run.simulated else f" wall, {si(steady.get('cpu_s'), 's')} CPU."
    head = Table(
        f"Prediction and {'simulation' if run.simulated else 'measurement'}",
        heading,
        tuple((n, count(p), count(m), ratio(m, p)) for n, p, m in rates if (p, m) != (None, None)),
        (note,) if steady.get("env_steps") else (),
    )

    def short(task: str) -> str:  # the parts of a fused call are listed elsewhere
        return words.call_name(run.plan, task.split("+")) if "+" in task else task

    if run.drift is not None and run.drift.off is not None:
        named = tuple(replace(t, task=short(t.task)) for t in run.drift.tasks)
        drift_notes = (drift_sentence(replace(run.drift, tasks=named)), *run.drift.learned)
        head = replace(head, notes=(*head.notes, *drift_notes))
    if all(t.measured_s is None for t in run.tasks):
        return (head,)
    profiled = [t.task for t in run.tasks if t.profiled]
    tasks = Table(
        "Time per firing",
        (Column("task"), *heading[1:], Column("firings", "right")),
        tuple(
            (
                short(t.task) + ("*" if t.profiled else ""),
                si(t.predicted_s, "s"),
                si(t.measured_s, "s"),
                ratio(t.measured_s, t.predicted_s),
                count(t.firings),
            )
            for t in run.tasks
        ),
        ("* timed one by one, in a separate profiled part of the run.",) if profiled else (),
    )
    return head, tasks
