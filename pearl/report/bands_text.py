"""The uncertainty of a plan in words: bands of its predictions, and its regret."""

from __future__ import annotations

from pearl.formatting import band, count, listed, percent
from pearl.planning.bands import Bands, Ends, Regret
from pearl.planning.plans import BOUND_SOURCES, Plan, closed_forms


def gap_text(plan: Plan) -> str:
    """Return the gap of a plan to its bound: `2.4 %`, `below 0.1 %`."""
    return "below 0.1 %" if plan.gap < 0.0005 else percent(plan.gap)


def proof_text(plan: Plan) -> str:
    """Return the status of a plan, with the gap to its bound if the plan is not proved."""
    gap = gap_text(plan)
    if plan.status == "optimal" and plan.certified != "optimal":
        return f"optimal by search; {certified_text(plan)}"
    text = f"gap to the proved bound {gap}"
    if plan.bound_from and plan.regret is None:
        text += f", which counts {BOUND_SOURCES[plan.bound_from]}"
    return {
        "optimal": "optimal, proved",
        "feasible": f"feasible, {text}",
        "time_limit": f"stopped at the time limit, {text}",
    }[plan.status]


def certified_text(plan: Plan) -> str:
    """Return what the certificate of a plan proves of it."""
    if plan.certified_bound is None or not plan.certified:
        return "not certified"
    if plan.certified == "optimal":
        return "certified"
    return f"certified within {percent(1 - plan.value / plan.certified_bound)}"


def value_band_text(plan: Plan) -> str:
    """Return the band of the value in brackets; empty if its ends have the same digits."""
    ends = rate_band(plan)
    return f" ({range_text(ends)})" if ends else ""


def rate_band(plan: Plan) -> Ends:
    """Return the band of the value; empty if there is none.

    There is none if the value is not env steps per second or joule, if the band has no width, or if
    a time of the plan is a closed form: its range is assumed and has no probability.
    """
    b = None if closed_forms(plan) else plan.bands
    names = {"env steps/s": "env_steps_per_s", "env steps/J": "env_steps_per_j"}
    ends: Ends = getattr(b, names[plan.value_unit]) if b and plan.value_unit in names else None
    return ends if ends and ends[0] < ends[1] else None


def range_text(ends: tuple[float, float]) -> str:
    """Return low to high: `340–1,660`."""
    low, high = (count(end) for end in ends)
    return low if low == high else f"{low}–{high}"


def band_facts(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Return the bands of a plan with their label; a range if some of its times are closed
    forms."""
    if plan.bands is None:
        return ()
    closed, text = closed_forms(plan), bands_text(plan.bands)
    if not closed:
        return (("90 % bands", text),)
    return (
        (
            "range",
            f"{text}, which are assumed for {listed(closed)}: closed forms of a design that "
            "was not built have no probability (`pearl advise` compares the designs)",
        ),
    )


def bands_text(b: Bands) -> str:
    """Return the bands of 90 % of the draws in words."""
    parts = [
        f"{range_text(ends)} {unit}"
        for ends, unit in (
            (b.env_steps_per_s, "env steps/s"),
            (b.updates_per_s, "gradient steps/s"),
            (b.env_steps_per_j, "env steps/J"),
        )
        if ends and ends[1] > 0
    ]
    if b.power_w:
        parts.append(band(*b.power_w, "W"))
    if b.period_s:
        parts.append(f"{band(*b.period_s, 's')} per iteration")
    text = listed(parts) if parts else "not finite"
    text += f", in {b.draws} draws from the bands of the estimates"
    if b.missed:
        text += f"; {b.missed} of them exceed the limit on power when idle and count as 0"
    return text


def regret_clause(r: Regret | None) -> str:
    """Return the regret by which a plan was also chosen; empty if there is none."""
    return "" if r is None else f", by the least {r.kind} regret"


def regret_text(r: Regret) -> str:
    """Return the regret for which a plan was chosen; two ends if some draws are unsolved."""
    proof = (
        f"the least {r.kind} one, proved"
        if r.is_proved
        else f"no plan has a {r.kind} one below {percent(r.bound)}"
    )
    mean, worst = _ends(r.mean, r.mean_high), _ends(r.worst, r.worst_high)
    return (
        f"{mean} in the mean of {r.draws} draws, {worst} at worst; {r.solved} of {r.draws} draws "
        f"solved; {proof}"
    )


def _ends(low: float, high: float | None) -> str:
    """Return one share, or two: `3.1 % to 6.8 %`."""
    if high is None:
        return f"{percent(low)} or more"
    return percent(low) if percent(low) == percent(high) else f"{percent(low)} to {percent(high)}"
