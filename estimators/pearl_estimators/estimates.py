"""`Estimate`: time and energy of one firing, with its rung and error band."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from pearl_devices.validation import check_type, explain_misfit, quote

Rung = Literal["measured", "calibrated", "closed_form", "probed", "datasheet", "given"]
Bound = Literal["compute", "memory", "overhead", "given"]

AS_LATENCY = float("nan")
"""Default of a time that is the latency. No other NaN stands for it: each is refused."""


@dataclass(frozen=True)
class Estimate:
    """Cost of one firing of a kernel.

    Attributes:
        latency_s: start to result.
        occupancy_s: time that the lane is occupied (initiation interval), at most latency_s;
            default latency_s.
        low_s: low end of the 90 % band of latency_s; default exact.
        high_s: high end of that band.
        energy_j: dynamic energy (above idle).
        rung: origin of the number, best first measured, calibrated, closed_form, probed, datasheet;
            `given` means that the user gave it.
        bound_by: the limiting part.
        source: formula, file or datasheet.
        parts: name → seconds of latency_s, if the estimate is a sum of named parts; else empty.

    Raises:
        ValueError: a number is out of range or a word is unknown; the text names the field.
    """

    latency_s: float
    occupancy_s: float = AS_LATENCY
    low_s: float = AS_LATENCY
    high_s: float = AS_LATENCY
    energy_j: float = 0.0
    rung: Rung = "given"
    bound_by: Bound = "given"
    source: str = ""
    parts: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if problems := check_type("estimate: parts", self.parts, Mapping, "a mapping to seconds"):
            raise ValueError(*problems)
        object.__setattr__(self, "parts", MappingProxyType(dict(self.parts)))
        for name in ("occupancy_s", "low_s", "high_s"):
            if getattr(self, name) is AS_LATENCY:
                object.__setattr__(self, name, self.latency_s)
        for name in ("latency_s", "occupancy_s", "low_s", "high_s", "energy_j"):
            if wrong := explain_misfit(getattr(self, name)):
                raise ValueError(f"estimate: {name} {wrong}")
        for name, allowed in (("rung", get_args(Rung)), ("bound_by", get_args(Bound))):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"estimate: {name} is {quote(getattr(self, name))}; it is one of "
                    f"{', '.join(allowed)}"
                )
        if self.occupancy_s > self.latency_s:
            raise ValueError(
                f"estimate: occupancy_s {self.occupancy_s} exceeds latency_s {self.latency_s}; "
                "a lane cannot be occupied longer than the result takes"
            )
