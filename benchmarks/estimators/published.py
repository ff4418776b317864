"""The models of GPUs and CPUs against figures that others have published.

The table (`--data FOLDER` with published.csv in it, or in a folder `published`; columns as
`published_points.Point`) is not part of this repository. Every figure is predicted twice: as
shipped, and by constants that are fitted without any figure of its source. A figure says the same
quantity (`direct`), includes more than the model does (`above`: the model may not be slower), or
less (`below`: it may not be faster). Constants start from guesses that are as wide as a factor of
two (`GUESSES`) and are moved by the direct figures; far ones count less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import minimize

from benchmarks.bars import AbsentError, Bar, Part
from benchmarks.estimators.published_assumed import ASSUMED, Point, completed
from benchmarks.estimators.published_points import RETYPED, TUNED, Constants, Said, predicted, read
from pearl_estimators.gpu.queue import Rates
from pearl_estimators.gpu.variants import KERNEL_BAND

FILE = "published.csv"
LOOPS, KERNELS, HELD = 1.35, 1.5, (0.80, 0.97)
WIDE, FAR, OUT = math.log(2), 0.3, 30.0
"""Spread of a guess; the logarithm of an error that counts in full; weight of a bound broken."""
NEAR = 0.15
"""Shipped constants are within it of the fit to all points, in logarithms."""

GUESSES = {
    "element_s": 1e-6,
    "product_s": 2e-6,
    "step_cycles": 32.0,
    "share": 0.8,
    "wide_share": 0.7,
    "l2_bytes_per_cycle": 32.0,
    "stream_s": 1e-6,
    "later_s": 3e-6,
    "operator_s": 4e-6,
}
"""Constant → what it would be without any figure: a microsecond to begin and end a kernel, a load
of shared memory and a multiply-add behind it, half of the cache's 64 bytes a cycle."""

WITHOUT: dict[str, Any] = {
    "rtferraz/cuda-kernel-engineering": {"l4_share": 0.30},
    "isaac-sim/IsaacLab": {"host_power": 1.0},
    "MyoHub/myosuite": {"gradient_s": 20.9e-6},
}
"""Source → constants that are not fitted here, as they would be without it: the L4's share by
NeuSight's layers alone, starts in proportion to the host's clock, operators of gradient steps in
the middle of a CPU's and of LeanRL's loops."""

Told = tuple[Point, Said]


def constants(values: Any, shipped: Constants) -> Constants:
    """Constants with these logarithms over GUESSES, an array or a list of them."""
    found = {n: g * math.exp(v) for (n, g), v in zip(GUESSES.items(), values, strict=True)}
    of_rates = {n: v for n, v in found.items() if n in Rates.__dataclass_fields__}
    rest = {n: v for n, v in found.items() if n not in of_rates}
    return replace(shipped, rates=Rates(**of_rates), **rest)


def broken(point: Point, ratio: float) -> float:
    """By how much, in logarithms, a prediction breaks the bound that a figure is."""
    slower = math.log(ratio) if point.unit == "s" else -math.log(ratio)
    return max(0.0, {"above": slower, "below": -slower}.get(point.role, 0.0))


def fitted(told: Sequence[Told], shipped: Constants) -> Constants:
    """The constants that these figures ask for."""
    kernels = [(p, said) for p, said in told if p.sort != "2"]

    def loss(values: Any) -> float:
        c, total = constants(values, shipped), float(np.sum((values / WIDE) ** 2))
        for point, said in kernels:
            ratio = said(c) / point.value
            off = abs(math.log(ratio))
            if point.role == "direct":
                total += off**2 / 0.04 if off < FAR else (2 * FAR * off - FAR**2) / 0.04
            total += OUT * broken(point, ratio) / 0.04
        return total

    start: Any = np.zeros(len(GUESSES))
    for _ in range(2):  # along each axis, then across the edges of bounds
        start = minimize(loss, start, method="Powell", options={"xtol": 0.003}).x
        simplex = np.vstack([start, *(start + 0.1 * row for row in np.eye(len(start)))])
        options: dict[str, Any] = {
            "initial_simplex": simplex,
            "maxiter": 1000,
            "xatol": 0.003,
            "fatol": 0.01,
        }
        start = minimize(loss, start, method="Nelder-Mead", options=options).x  # type: ignore[call-overload]
    return constants(start, shipped)


def without(told: Sequence[Told], origin: str, shipped: Constants) -> Constants:
    """The constants without a source."""
    known = replace(shipped, **WITHOUT.get(origin, {}))
    return fitted([t for t in told if t[0].origin != origin or t[0].name in TUNED], known)


def inside(point: Point, said: float) -> bool:
    """Whether a time is in the band of its estimate; of a rate, its inverse."""
    times = point.value / said if point.unit == "s" else said / point.value
    return 1 / KERNEL_BAND.below <= times <= KERNEL_BAND.above


def _off(ratios: Sequence[float]) -> float:
    """The median factor by which these are off."""
    return math.exp(median(abs(math.log(r)) for r in ratios))


def table_of(data: Path | None) -> Path:
    """The file of published figures.

    Raises:
        AbsentError: there is none; the text says where it is looked for.
    """
    places = [] if data is None else [data / FILE, data / "published" / FILE]
    found = next((p for p in places if p.is_file()), None)
    if found is None:
        raise AbsentError(
            f"published figures: no {FILE} in {data or 'a folder (name it by --data FOLDER)'}"
        )
    return found


def run(quick: bool, data: Path | None) -> Part:
    """The table. quick: held-out constants are the shipped ones, for nothing is fitted."""
    points, shipped = completed([*read(table_of(data)), *read(RETYPED)]), Constants.shipped()
    says = {p.name: predicted(p) for p in points}
    told = [(p, said) for p in points if not isinstance(said := says[p.name], str)]
    origins = {p.origin for p, _ in told}
    every: Callable[[str], Constants] = lambda origin: without(told, origin, shipped)  # noqa: E731
    held_out = {o: shipped if quick else every(o) for o in sorted(origins)}
    whole = shipped if quick else fitted(told, shipped)
    rows, kept = list[list[str]](), list[dict[str, Any]]()
    loops: list[float] = []
    kernels: list[float] = []
    held = 0
    violated: list[str] = []
    silent: list[str] = []
    for point in points:
        said = says[point.name]
        head = [point.name, f"{point.what[:40]}; {point.gpu[:22]}", point.role]
        scale = 1e6 if point.unit == "s" else 1.0
        unit = "µs" if point.unit == "s" else "/s"
        read_as = f"{scale * point.value:,.4g} {unit}"
        if isinstance(said, str):
            silent.append(f"{point.name} ({read_as}): {said}")
            kept.append({"point": point.name, "role": point.role, "left_out": said})
            continue
        now, then = said(shipped), said(held_out[point.origin])
        good = inside(point, then)
        if point.role == "direct":
            verdict = ("in" if good else "OUT") + " (tuned)" * (point.name in TUNED)
            if point.name not in TUNED:
                held += good
                (loops if point.sort == "2" else kernels).append(then / point.value)
        else:
            breaks = broken(point, now / point.value) > 0
            verdict = "BROKEN" if breaks else "kept"
            violated += [point.name] * breaks
        ratio, by_rest = f"{now / point.value:.2f}", f"{then / point.value:.2f}"
        rows.append([*head, f"{scale * now:,.4g} {unit}", read_as, ratio, by_rest, verdict])
        kept.append(
            {
                "point": point.name,
                "role": point.role,
                "ratio": now / point.value,
                "ratio_without_its_source": then / point.value,
                "verdict": verdict,
            }
        )
    print("Figures of which the models say nothing:", *silent, sep="\n  ")
    taken = [f"{p.name}: {ASSUMED[p.name][1]}" for p, _ in told if p.name in ASSUMED]
    print("Assumed, and of a range the nearest to the figure is taken:", *taken, sep="\n  ")
    count = len(loops) + len(kernels)
    share = held / count if count else 0.0
    drift = {
        n: getattr(whole.rates, n, getattr(whole, n, 0.0))
        / getattr(shipped.rates, n, getattr(shipped, n, 1.0))
        for n in GUESSES
    }
    far = max(drift.values(), key=lambda r: abs(math.log(r)))
    bars = [
        Bar(
            f"single kernels and starts, {len(kernels)}: median error, source left out",
            f"{_off(kernels):.2f}",
            f"at most {KERNELS}",
            _off(kernels) <= KERNELS,
        ),
        Bar(
            f"gradient steps and loops, {len(loops)}: median error, source left out",
            f"{_off(loops):.2f}",
            f"at most {LOOPS}",
            _off(loops) <= LOOPS,
        ),
        Bar(
            f"in the 90 % band, source left out, of {count}",
            f"{share:.0%}",
            f"{HELD[0]:.0%} to {HELD[1]:.0%}",
            HELD[0] <= share <= HELD[1],
        ),
        Bar("one-sided figures broken", ", ".join(violated) or "0", "0", not violated),
        Bar(
            "shipped constants over the fit to all figures, farthest",
            f"{1 / far:.2f}",
            f"within {math.exp(NEAR):.2f}",
            abs(math.log(far)) <= NEAR,
        ),
    ]
    # The figures are others': the kept result has their names and the ratios.
    values = {"points": kept, "fit_over_shipped": drift, "columns": [], "rows": []}
    columns = ["figure", "what; GPU", "role", "predicted", "published", "ratio"]
    columns += ["without its source", "band"]
    left_out = ["fits without each source"] if quick else []
    return Part("Published figures", columns, rows, bars, left_out, values)
