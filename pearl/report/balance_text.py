"""Sentences and tables of a balance, and of slices of a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pearl.formatting import count, percent, si
from pearl.planner.gpu_balance import Balance, BalanceAnswer, SweepPoint
from pearl.planner.gpu_slices import MOST_SLICES, SlicingResult
from pearl.report.bands_text import range_text
from pearl.report.document import Column, Table
from pearl.report.terminal import block_text

ALIKE = 0.02
"""Rates that differ by less than this share share a row of a table (assumed)."""


def name_busiest_part(v: BalanceAnswer) -> str:
    """Return the words for the part that bounds the rate."""
    rest = "the replay" if v.gpu else "the learner and its replay"
    return {"actors": "the actors", "gpu": "the GPU", "host": f"the core of {rest}"}[v.busiest]


def describe_sureness(v: BalanceAnswer) -> str:
    """Return `in 97.5 % of 200 draws`, the share in which the same part bounds the rate."""
    return f"in {percent(v.share).replace('.0', '')} of {v.draws} draws"


def verdict_sentence(v: BalanceAnswer) -> str:
    """Return how many threads the GPU needs, what bounds the rate, and how sure both are."""
    rate, low, high = v.env_steps_per_s
    rates = f"{count(rate)} env steps/s ({range_text((low, high))})"
    machine = f"{v.cpu} with {v.cores} core{'' if v.cores == 1 else 's'}"
    part = f"{name_busiest_part(v)} {'are' if v.busiest == 'actors' else 'is'} the bottleneck"
    bound = f"{part}, {describe_sureness(v)}: {rates} on {machine}."
    if v.gpu is None or v.threads is None or v.threads_band is None:
        return bound[:1].upper() + bound[1:]
    all_sms = f"all {v.sms} SMs of {v.gpu}"
    if v.used_sms is not None and v.sms is not None and v.used_sms < v.sms:
        all_sms = f"{v.gpu}, whose kernels use at most {v.used_sms} of {v.sms} SMs"
    band = _threads_band(*v.threads_band)
    if math.isinf(v.threads):
        return (
            f"No number of threads feeds {all_sms}: an actor's work per step, for any number of "
            f"environments, takes longer than the GPU's; {bound}"
        )
    n = max(1, math.ceil(v.threads))
    threads = f"{n:,} thread{'' if n == 1 else 's'}{band}"
    if n > v.actors:
        return f"It takes {threads} to feed {all_sms}, and {v.actors} can run here: {bound}"
    return f"{threads} feed{'s' if n == 1 else ''} {all_sms}; {bound}"


def _threads_band(low: float, high: float) -> str:
    """Return the band in brackets; empty if it is one number, or if no number is enough."""
    if math.isinf(low):
        return ""
    least, most = (max(1, math.ceil(e)) if math.isfinite(e) else None for e in (low, high))
    if most is None:
        return f" (at least {least:,})"
    return f" ({least:,} to {most:,})" if most != least else ""


def halves_sentence(balance: Balance) -> str:
    """Return the cost of half of the SMs, and of half of the threads."""
    remaining = {"SMs": balance.halved_sms, "threads": balance.halved_cores}
    losses = {name: 1 - left for name, left in remaining.items() if left is not None}
    same = [name for name, less in losses.items() if less < ALIKE]
    parts = [
        f"half of the {name} costs {100 * less:.0f} % of the rate"
        for name, less in losses.items()
        if less >= ALIKE
    ]
    parts += [f"half of the {' or of the '.join(same)} costs nothing"] if same else []
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def slices_text(sliced: SlicingResult) -> str:
    """Return the roles on the GPU, both layouts, the best slices, and the sum of their
    gradients."""
    heading = (Column("role"), *(Column(n, "right") for n in ("time per iteration", "share of it")))
    roles = (("simulator", sliced.simulator), ("agent", sliced.agent), ("trainer", sliced.trainer))
    rows = tuple((name, si(r.seconds, "s"), percent(r.share)) for name, r in roles)
    title = f"Slices of {sliced.device} that hold simulator, agent and trainer"
    lines = [
        f"colocated over dedicated slices: {sliced.serving_gain:.2f} x serving, "
        f"{sliced.training_gain:.2f} x training"
    ]
    best, way, sizes = sliced.best, sliced.reduction, sliced.environments
    if best is None or way is None:
        lines.append(f"no slice has enough memory, even for {sizes[0]} environments, the fewest")
    else:
        lines += [
            f"best: {best.slices} slices of {best.environments} environments a GPU, "
            f"{count(sliced.gpus * best.env_steps_per_s)} env steps/s on {sliced.gpus}, "
            f"{si(best.memory_bytes, 'B')} each, by {best.probes} of "
            f"{MOST_SLICES * len(sizes)} estimates",
            f"sum of their gradients: {way.name}, {si(way.seconds, 's')}"
            + (f" ({way.on_ring} of a GPU's slices on the ring)" if way.on_ring else ""),
        ]
    if sliced.refused:
        lines.append(f"tried up to {sizes[-1]} environments per slice; beyond: {sliced.refused}")
    lines.append("Predicted by the mapping model of GMI-DRL (arXiv 2206.08482).")
    return "\n".join([block_text(Table(title, heading, rows)), "", *lines])


def sweep_table(title: str, points: Sequence[SweepPoint]) -> Table | None:
    """Return the rows whose rate differs from the row before; None if all rates are alike."""
    shown = [points[0]]
    for p in points[1:]:
        if abs(p.env_steps_per_s / shown[-1].env_steps_per_s - 1) >= ALIKE:
            shown.append(p)
    if len(shown) == 1:
        return None
    heading = (
        *(Column(n, "right") for n in ("actors", "cores", "SMs", "env steps/s", "env steps/J")),
        Column("busiest"),
        *(Column(n, "right") for n in ("actors take", "GPU takes", "host takes")),
    )
    rows = tuple(
        (
            str(p.actors),
            str(p.cores),
            "-" if p.sms is None else str(p.sms),
            count(p.env_steps_per_s),
            count(p.env_steps_per_j),
            {"gpu": "GPU"}.get(p.busiest, p.busiest),
            si(p.actors_s, "s"),
            "-" if p.sms is None else si(p.gpu_s, "s"),
            si(p.host_s, "s"),
        )
        for p in shown
    )
    beyond = points[-1] is not shown[-1]
    notes = (f"More changes less than {percent(ALIKE)}.",) if beyond else ()
    return Table(title, heading, rows, notes)
