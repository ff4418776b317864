"""The origin of the numbers on a page: estimates, versions, host and date."""

from __future__ import annotations

import platform as python_platform
from importlib.metadata import PackageNotFoundError, version

from pearl.formatting import count, listed, si
from pearl.planning.plans import CLOSED, Plan
from pearl.planning.runs import Run
from pearl.report import words
from pearl.report.document import Column, Table
from pearl_devices import Platform

RUNGS = {
    "measured": "measured",
    "calibrated": "calibrated",
    CLOSED: "closed form, assumed",
    "probed": "data sheet, scaled by a probe",
    "datasheet": "data sheet",
}
"""Rung of an estimate → its name in reports; other rungs, such as a user's, keep their name."""


def rung_word(rung: str) -> str:
    """Return the name of a rung in reports."""
    return RUNGS.get(rung, rung.replace("_", " "))


def estimates_text(plan: Plan) -> str:
    """Return the origin of a plan's times: `calibrated`, or `data sheet (learn), calibrated
    (act)`."""
    by: dict[str, list[str]] = {}
    for t in plan.tasks:
        names = by.setdefault(rung_word(t.rung) + ", simulated" * (t.device in plan.simulated), [])
        if t.task not in names:
            names.append(t.task)
    if len(by) == 1:
        return next(iter(by))
    return listed([f"{rung} ({', '.join(names)})" for rung, names in by.items()])


def footer(plan: Plan, run: Run | None = None, written: str = "") -> str:
    """Return one line: version, spec, seed, origin of numbers, host and date.

    written: the date; if empty, host and date are omitted, for pages that are compared.
    """
    source = "simulated" if run is not None and run.simulated else "measured"
    parts = [f"pearl {plan.pearl_version}"]
    if plan.spec_sha256.strip("0"):
        parts.append(f"spec {plan.spec_sha256[:8]}")
    parts += [f"seed {plan.seed}", f"planned for {plan.host}"]
    parts.append(f"estimates: {estimates_text(plan)}")
    if run is None:
        parts.append("nothing measured: the plan has not run")
    else:
        steps = run.steady.get("env_steps")
        if steps:
            took = si(run.steady.get("wall_s"), "s")
            parts.append(f"rates {source} over {count(steps)} env steps in {took}")
    if plan.bands is not None:
        parts.append(f"bands contain 90 % of {plan.bands.draws} draws")
    energy = run.energy_source if run is not None else "modelled"
    parts.append(f"energy {energy}" if energy else "energy not metered")
    if written:
        parts += [_versions(), f"written on {python_platform.node() or 'this host'}, {written}"]
    parts.append("a click on a command selects all of it")
    return " · ".join(parts)


def _versions() -> str:
    found = [f"Python {python_platform.python_version()}"]
    for name in ("numpy", "numba", "torch"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def sources_table(platform: Platform, used: set[str]) -> Table:
    """Return the figures of the devices that a plan uses, each with its source."""
    rows = []
    for d in platform.devices:
        if d.name not in used:
            continue
        name = words.device_name(d.name, [d.name] if d.simulated else [])
        for label, value, key in (
            ("model", d.model or d.name, "model"),
            ("peak", si(d.peak_flops_per_s, "FLOP/s"), "peak_flops_per_s"),
            ("bandwidth", si(d.memory_bytes_per_s, "B/s"), "memory_bytes_per_s"),
            ("overhead of a call", si(d.overhead_s, "s"), "overhead_s"),
            ("power, idle", si(d.idle_power_w, "W"), "idle_power_w"),
            ("power, busy", si(d.active_power_w, "W"), "active_power_w"),
        ):
            rows.append((name, label, value, d.sources.get(key, "")))
    for link in platform.links:
        if link.a in used and link.b in used:
            text = f"{si(link.bytes_per_s, 'B/s')}, {si(link.latency_s, 's')} per message"
            rows.append((f"link {link.name}", "bandwidth, latency", text, ""))
    columns = (Column("device"), Column("figure"), Column("value"), Column("source"))
    return Table("", columns, tuple(rows))
