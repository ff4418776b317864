"""Texts that commands print besides reports: devices, calibrations, differences between plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pearl.formatting import band, listed, marked, percent, ratio, si
from pearl.report.document import Column, Table
from pearl.report.terminal import block_text

if TYPE_CHECKING:
    from pearl.cluster.links import MeasuredLink
    from pearl_devices import Platform
    from pearl_estimators.gpu.calibration import GpuCalibration
    from pearl_estimators.gpu.operators import OperatorFit
    from pearl_estimators.host.calibration import Calibration, HeldOutTiming
    from pearl_estimators.host.probe import CpuProbe


NOT_IDENTIFIED = "not identified"
"""Printed instead of a number that the timed sizes do not identify."""


def platform_object(platform: Platform) -> dict[str, Any]:
    """Return a platform as a plain object, with every field of every device and link."""

    def record(thing: Any) -> dict[str, Any]:
        return {f.name: getattr(thing, f.name) for f in fields(thing)}

    return {
        "platform": platform.name,
        "host": platform.host,
        "devices": [record(d) for d in platform.devices],
        "links": [record(link) for link in platform.links],
        "notes": list(platform.notes),
    }


def platform_text(platform: Platform) -> str:
    """Show every device with its figures and their sources."""
    lines = []
    for d in platform.devices:
        kind = f"{d.kind}, simulated" if d.simulated else d.kind
        kind += f", design {d.design}" if d.design else ""
        lines.append(f"{d.name} ({kind})  {d.model}".rstrip())
        facts = (
            ("width", f"{d.width} {d.width_unit}", "width"),
            ("memory", si(d.memory_bytes, "B"), "memory_bytes"),
            ("peak", si(d.peak_flops_per_s, "FLOP/s"), "peak_flops_per_s"),
            ("bandwidth", si(d.memory_bytes_per_s, "B/s"), "memory_bytes_per_s"),
            ("overhead", si(d.overhead_s, "s"), "overhead_s"),
            ("power", f"{d.idle_power_w:g} to {d.active_power_w:g} W", "active_power_w"),
            *(
                [("in use", f"{d.context_power_w:g} W, doing nothing", "context_power_w")]
                if d.context_power_w
                else []
            ),
        )
        for label, value, key in facts:
            source = f"  [{d.sources[key]}]" if key in d.sources else ""
            lines.append(f"  {label:<10} {value}{source}")
    for link in platform.links:
        lines.append(
            f"{link.name} (link)  {si(link.bytes_per_s, 'B/s')}, latency {si(link.latency_s, 's')}"
        )
    lines += [f"note: {note}" for note in platform.notes]
    simulated = [d.name for d in platform.devices if d.simulated]
    return "\n".join(marked(line, simulated) for line in lines)


def variants_text(device: str, variants: Mapping[str, Sequence[str]]) -> str:
    """Show the kinds of kernels that a device runs, with their variants."""
    heading = (Column("kernel"), Column("variants"))
    rows = tuple((kind, ", ".join(names)) for kind, names in variants.items())
    return block_text(Table(f"What {device} runs", heading, rows))


def links_text(links: Sequence[MeasuredLink], path: str) -> str:
    """Show the measured links between hosts in a table."""
    heading = (
        Column("between"),
        Column("by"),
        *(Column(n, "right") for n in ("latency", "a message", "bandwidth", "median error")),
        Column("widest spread", "right"),
    )
    rows = tuple(
        (
            f"{k.home}, {k.other}",
            k.carrier,
            si(k.latency_s, "s"),
            si(k.per_message_s, "s"),
            si(k.bytes_per_s, "B/s"),
            percent(k.error),
            f"× {max(t.spread for t in k.timings):.1f}",
        )
        for k in links
    )
    notes = [f"kept in {path}"] if rows else ["There is no other node with cores."]
    return block_text(Table("Links between hosts", heading, rows, tuple(notes)))


def calibration_text(calibration: Calibration, path: str) -> str:
    """Show the fitted kernels in a table, and how measuring went."""
    rows = tuple(
        (f.family, f.variant, f"{100 * f.error:.0f} %", f"× {math.exp(f.band):.2f}", str(f.points))
        for f in calibration.fits
    )
    heading = (
        Column("kernel"),
        Column("variant"),
        Column("median error", "right"),
        Column("90 % band", "right"),
        Column("points", "right"),
    )
    notes = [f"left out: {name}: {reason}" for name, reason in calibration.skipped.items()]
    if calibration.noisy:
        notes.append("The machine was shared while measuring, so all bands are wider.")
    if loaded := sum(p.loaded for p in calibration.points):
        notes.append(
            f"{loaded} of its kernels were timed under load; they are timed again when it is quiet."
        )
    if calibration.doubts:
        doubts = [f"{name} ({factor:.2f} x)" for name, factor in calibration.doubts.items()]
        notes.append(f"Contradicted by a run, and timed again when it is quiet: {listed(doubts)}")
    pairs = [(share, a, b) for a, row in calibration.beside.items() for b, share in row.items()]
    if pairs:
        share, a, b = max(pairs)
        notes.append(f"Largest slow-down on two cores at once: {percent(share)}, of {a} by {b}")
    notes.append(f"{si(calibration.wall_s, 's')}, kept in {path}")
    return block_text(Table("Calibrated kernels", heading, rows, tuple(notes)))


def probe_text(probe: CpuProbe, path: str) -> str:
    """Show the measured costs of this host's CPU."""
    rows = [
        ("dispatch of an operator of torch", si(probe.operator_s, "s")),
        ("dispatch of one of a gradient step", si(probe.gradient_s, "s")),
        *(
            (f"products of {side} x {side}, one core", si(rate, "FLOP/s"))
            for side, rate in probe.products.items()
        ),
        ("a native product of 256 x 256, one core", si(probe.native_flops_per_s, "FLOP/s")),
        ("a large copy, one core", si(probe.memory_bytes_per_s, "B/s")),
        (
            "handoff to another process",
            "not timed" if probe.handoff_s is None else si(probe.handoff_s, "s"),
        ),
    ]
    heading = (Column("of this CPU"), Column("", "right"))
    return block_text(Table("Probe", heading, tuple(rows), (f"{probe.source}, kept in {path}",)))


def gpu_calibration_text(calibration: GpuCalibration, path: str) -> str:
    """Show the fitted operators in a table."""
    heading = (
        Column("operator"),
        *(Column(n, "right") for n in ("points", "left-out error", "overhead", "flops", "bytes")),
        Column("corrected by neighbours"),
    )

    def figure_text(fit: OperatorFit, name: str, unit: str) -> str:
        return NOT_IDENTIFIED if name in fit.unidentified else si(getattr(fit, name), unit)

    rows = tuple(
        (
            f.operator,
            str(f.points),
            f"{100 * f.error:.1f} %",
            figure_text(f, "overhead_s", "s"),
            figure_text(f, "flops_per_s", "FLOP/s"),
            figure_text(f, "bytes_per_s", "B/s"),
            "yes" if f.places else "no",
        )
        for f in calibration.fits
    )
    notes = [f"from {calibration.source}, kept in {path}"]
    if any(f.unidentified for f in calibration.fits):
        notes.append(
            f"{NOT_IDENTIFIED}: not identified by these sizes, whose time it is no part of"
        )
    if calibration.starts and calibration.copies:
        s, c = calibration.starts, calibration.copies
        notes.append(
            f"starts: a launch {si(s.launch_s, 's')}, and beside it an operator "
            f"{si(s.operator_s, 's')}, one with gradients {si(s.gradient_s, 's')}, a graph "
            f"{si(s.graph_s, 's')}; in a graph an operator {si(s.gap_s, 's')}"
        )
        notes.append(
            f"copies: {si(c.latency_s, 's')}, then {si(c.to_device_bytes_per_s, 'B/s')} to it and "
            f"{si(c.to_host_bytes_per_s, 'B/s')} from it"
        )
    return block_text(Table(f"Operators of {calibration.model}", heading, rows, tuple(notes)))


def checks_text(rows: Sequence[HeldOutTiming]) -> str:
    """Show kernels that no fit has seen: predicted and measured times."""
    cells = tuple(
        (
            row.kernel,
            row.variant,
            si(row.predicted_s, "s"),
            si(row.measured_s, "s"),
            ratio(row.measured_s, row.predicted_s),
            band(row.low_s, row.high_s, "s"),
            "yes" if row.held else "no",
        )
        for row in rows
    )
    heading = (
        Column("kernel", folds=True),
        Column("variant"),
        Column("predicted", "right"),
        Column("measured", "right"),
        Column("ratio", "right"),
        Column("90 % band", "right"),
        Column("held"),
    )
    note = f"the band held {sum(row.held for row in rows)} of {len(rows)}"
    return block_text(Table("Held-out kernels", heading, cells, (note,)))
