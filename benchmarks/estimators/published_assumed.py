"""What published figures leave open, as far as it can be filled in; and figures typed here.

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


CARTPOLE = Point(
    name="I01",
    what="training part of an iteration",
    algorithm="PPO Isaac-Cartpole-Direct",
    network="32-32",
    batch="16,384",
    envs="4096",
    gpu="NVIDIA GeForce RTX 4090",
    cpu="AMD Ryzen 9 7950X",
    precision="float32",
    framework="rl_games eager",
    value=131_072 * (1 / 510e3 - 1 / 910e3),
    unit="s",
    counts="131,072 env steps at 910,000/s without training, 510,000/s with: 64 gradient steps",
    role="direct",
    source="isaac-sim/IsaacLab, performance_benchmarks.rst; 8 epochs of 8 minibatches as its "
    "configuration for skrl has them",
    sort="2",
)
ROUGH_G1 = replace(
    CARTPOLE,
    name="I03",
    algorithm="PPO Velocity-Rough-G1",
    network="512-256-128",
    batch="24,576",
    framework="rsl_rl eager",
    value=98_304 * (1 / 82e3 - 1 / 88e3),
    counts="98,304 env steps at 88,000/s without training, 82,000/s with: 20 gradient steps",
    source="isaac-sim/IsaacLab, performance_benchmarks.rst; rsl_rl_ppo_cfg.py of the G1; the two "
    "digits of each rate leave 17 %",
)
ON_M4 = replace(
    CARTPOLE,
    name="N01",
    what="gradient step on CPU",
    algorithm="DQN CartPole",
    network="64-64",
    batch="64",
    envs="",
    gpu="none",
    cpu="Apple M4, 14 cores",
    framework="PyTorch 2.10 eager",
    value=738e-6,
    counts="forward, backward and optimiser; threads of torch not stated",
    source="https://riserally.github.io/rlox/python/benchmark/nn-backends",
)
RETYPED = (
    CARTPOLE,
    replace(
        CARTPOLE,
        name="I02",
        gpu="NVIDIA L40",
        cpu="Intel Xeon Platinum 8362",
        value=131_072 * (1 / 260e3 - 1 / 490e3),
        counts="131,072 env steps at 490,000/s without training, 260,000/s with: 64 gradient steps",
    ),
    ROUGH_G1,
    ON_M4,
    replace(ON_M4, name="N02", batch="256", value=823e-6),
    replace(ON_M4, name="N03", algorithm="PPO CartPole", value=1440e-6),
    replace(ON_M4, name="N04", algorithm="PPO CartPole", batch="256", value=2357e-6),
)
"""Figures that this repository states by itself. Of the same page as I01 to I03 three more
differences (a G1 on an L40, a Shadow Hand on both cards) are left out: two digits leave 50 %."""

SB3 = {"network": "256-256", "batch": "256"}
MINIMAL = "default of the library that was run"
SERVERS = "any x86 CPU of the catalogue"

ASSUMED: dict[str, tuple[dict[str, Any], str]] = {
    "L19": (SB3, f"networks and batch: {MINIMAL}"),
    "L50": (
        {
            "what": "training time of 65.5 million env steps",
            "network": "400-200-100",
            "batch": "32,768",
            "counts": "10,000 gradient steps",
        },
        "the same run as L49",
    ),
    **{
        name: (
            {
                "what": "training part of an iteration",
                "network": "256-128-128",
                "batch": "24,576",
                "counts": "20 gradient steps",
                "framework": "rsl_rl eager",
            },
            "Isaac Lab's settings for a G1 on flat ground, the smallest",
        )
        for name in ("L53", "L54")
    },
    "L71": ({**SB3, "counts": "4 gradient steps a 16 env steps"}, f"networks and batch: {MINIMAL}"),
    "L72": (
        {**SB3, "counts": "16 gradient steps a 16 env steps"},
        f"networks and batch: {MINIMAL}",
    ),
    **{
        name: (
            {"network": "256-256", "counts": "1 gradient steps a 4 env steps"},
            f"networks: {MINIMAL}; {SERVERS}",
        )
        for name in ("L73", "L74")
    },
    **{
        name: (
            {
                "algorithm": "PPO CartPole",
                "network": "64-64",
                "counts": "320 gradient steps a 2,048 env steps",
            },
            f"networks and epochs: {MINIMAL}; {SERVERS}",
        )
        for name in ("L75", "L76")
    },
    "L77": (
        {
            "algorithm": "A2C CartPole",
            "network": "64-64",
            "batch": "5",
            "counts": "1 gradient steps a 5 env steps",
        },
        f"networks and batch: {MINIMAL}; {SERVERS}",
    ),
    "L78": (
        {"network": "256-256", "cpu": ON_M4.cpu},
        f"networks: {MINIMAL}; the CPU of its other pages; one to eight threads of torch",
    ),
    **{name: ({}, "one to eight threads of torch") for name in ("N01", "N02", "N03", "N04")},
    **{
        name: (
            {"network": "256-256", "batch": "1", "envs": "1"},
            f"networks: {MINIMAL}, the smallest",
        )
        for name in ("L80", "L81", "L82", "L83", "L84", "L85")
    },
}
"""Point → fields as they are taken to be, and why."""


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
