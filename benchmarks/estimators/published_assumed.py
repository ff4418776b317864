"""What published figures leave open, as far as it can be filled in.

An assumption is a default of the library that was run, or a smaller problem than was run, so that
a bound stays one. The table says each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Point:
    """A line of the table. value: in SI units; unit: s, or 1/s for a rate."""

    name: str
    what: str
    algorithm: str
    network: str
    batch: str
    envs: str
    gpu: str
    cpu: str
    precision: str
    framework: str
    value: float
    unit: str
    counts: str
    role: str
    source: str
    sort: str

    @property
    def origin(self) -> str:
        """Repository or page, of which several figures may be."""
        text = self.source.replace(",", "")
        text = re.sub(r"^https?://(www\.)?(github\.com/|huggingface\.co/)?(datasets/)?", "", text)
        return "/".join(re.split(r"[/ ]+", text)[:2])


ON_M4 = "Apple M4, 14 cores"
SB3 = {"network": "256-256", "batch": "256"}
MINIMAL = "default of the library that was run"
SERVERS = "any x86 CPU of the catalogue"
SETTINGS: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (("L19",), SB3, f"networks and batch: {MINIMAL}"),
    (
        ("L50",),
        {
            "what": "training time of 65.5 million env steps", "network": "400-200-100",
            "batch": "32,768", "counts": "10,000 gradient steps",
        },
        "the same run as L49",
    ),
    (
        ("L53", "L54"),
        {
            "what": "training part of an iteration", "network": "256-128-128", "batch": "24,576",
            "counts": "20 gradient steps", "framework": "rsl_rl eager",
        },
        "Isaac Lab's settings for a G1 on flat ground, the smallest",
    ),
    (
        ("L71",), SB3 | {"counts": "4 gradient steps a 16 env steps"},
        f"networks and batch: {MINIMAL}",
    ),
    (
        ("L72",), SB3 | {"counts": "16 gradient steps a 16 env steps"},
        f"networks and batch: {MINIMAL}",
    ),
    (
        ("L73", "L74"), {"network": "256-256", "counts": "1 gradient steps a 4 env steps"},
        f"networks: {MINIMAL}; {SERVERS}",
    ),
    (
        ("L75", "L76"),
        {
            "algorithm": "PPO CartPole", "network": "64-64",
            "counts": "320 gradient steps a 2,048 env steps",
        },
        f"networks and epochs: {MINIMAL}; {SERVERS}",
    ),
    (
        ("L77",),
        {
            "algorithm": "A2C CartPole", "network": "64-64", "batch": "5",
            "counts": "1 gradient steps a 5 env steps",
        },
        f"networks and batch: {MINIMAL}; {SERVERS}",
    ),
    (
        ("L78",), {"network": "256-256", "cpu": ON_M4},
        f"networks: {MINIMAL}; the CPU of its other pages; one to eight threads of torch",
    ),
    (("N01", "N02", "N03", "N04"), {}, "one to eight threads of torch"),
    (
        ("L80", "L81", "L82", "L83", "L84", "L85"),
        {"network": "256-256", "batch": "1", "envs": "1"}, f"networks: {MINIMAL}, the smallest",
    ),
)  # fmt: skip
"""Points, fields of theirs as they are taken to be, and why."""

ASSUMED = {name: (fields, why) for names, fields, why in SETTINGS for name in names}


def completed(points: Sequence[Point]) -> list[Point]:
    """The points with what is assumed of them, and those that two of them give."""
    found = [replace(p, **ASSUMED[p.name][0]) if p.name in ASSUMED else p for p in points]
    by_name = {p.name: p for p in found}
    fewer, more = by_name.get("L71"), by_name.get("L72")
    if fewer and more:  # 16 env steps with 4 gradient steps, and with 16: what 12 take
        found.append(
            replace(
                more,
                name="L72-L71",
                what="gradient step, by the difference",
                value=16 * (1 / more.value - 1 / fewer.value) / 12,
                unit="s",
                counts="sampling included; 1 and 2.5 hours, whose digits leave 13 %",
                role="direct",
            )
        )
    return found
