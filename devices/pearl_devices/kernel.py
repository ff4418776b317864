"""`Kernel`: an amount of work, independent of the hardware that does it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Dim = int | tuple[int, ...]
Arg = str | int | float | bool


@dataclass(frozen=True)
class Kernel:
    """One kind of work with its size. Build it with `pearl_devices.work.kernel`, which counts.

    kind: the family, for example `update.dqn`; `pearl_devices.work.KINDS` documents each.
    dims: named sizes; a size is an integer or, for the widths of a network, a tuple of integers.
    flops: floating point operations of one firing (a multiply-add counts as two).
    bytes_in, bytes_out: what one firing must read and write at least once.
    resident_bytes: scratch memory that stays allocated between firings (state is counted apart).
    program: `module:callable` or an environment id, resolved by the backend at `bind`;
        None for kinds that need no program of the user's.
    args: keyword arguments of `program`.
    """

    kind: str
    dims: Mapping[str, Dim] = field(default_factory=dict)
    flops: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    resident_bytes: float = 0.0
    program: str | None = None
    args: Mapping[str, Arg] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))
        object.__setattr__(self, "args", MappingProxyType(dict(self.args)))
        for name in ("flops", "bytes_in", "bytes_out", "resident_bytes"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"kernel {self.kind}: {name} is {value}; it must be finite and at least 0"
                )

    def __hash__(self) -> int:
        return hash((self.kind, tuple(sorted(self.dims.items())), self.program))

    def dim(self, name: str) -> int:
        """The size `name` as an integer; a missing one is a KeyError naming kind and sizes."""
        value = self.dims.get(name)
        if not isinstance(value, int):
            raise KeyError(f"kernel {self.kind} has no size '{name}'; it has {sorted(self.dims)}")
        return value

    def layers(self, name: str = "layers") -> tuple[int, ...]:
        """The widths of network `name`, input first; a missing one is a KeyError."""
        value = self.dims.get(name)
        if not isinstance(value, tuple):
            raise KeyError(
                f"kernel {self.kind} has no network '{name}'; it has {sorted(self.dims)}"
            )
        return value
