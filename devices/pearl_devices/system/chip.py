"""A processor and its memory, as the system describes them. Nothing is timed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Chip:
    """What a system says of the processor and the memory that this process may use.

    model: the name, for readers.
    listing: the kernel's list of figures (Linux: `/proc/cpuinfo`); "" if there is none.
    features: instruction sets that the list names.
    cores: physical cores; cores_source: where the number stands.
    cpu_quota: CPU time that a second may use, in CPUs; None without a limit.
    clock_hz: clock of a core, None if it is not told; clock_is_base: it is the base clock, and a
        single busy core runs faster.
    cache_bytes: level, such as `l1d_bytes` → bytes of a data cache of that level.
    memory_bytes: of the machine, or of the part that this process may use; None if not told.
    """

    model: str = ""
    listing: str = ""
    features: tuple[str, ...] = ()
    cores: int = 1
    cores_source: str = "assumed"
    cpu_quota: float | None = None
    clock_hz: float | None = None
    clock_source: str = "assumed"
    clock_is_base: bool = False
    cache_bytes: Mapping[str, float] = field(default_factory=dict)
    cache_source: str = ""
    memory_bytes: float | None = None
    memory_source: str = "assumed"
