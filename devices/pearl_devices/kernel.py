"""`Kernel`: an amount of work, independent of the hardware that does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pearl_devices.validation import explain_misfit

Dim = int | tuple[int, ...]
Arg = str | int | float | bool


@dataclass(frozen=True)
class Module:
    """A network that is a user-defined torch module, as it was counted.

    program: `module:callable` that builds it from the shape of one input row and the number of
        outputs.
    params: numbers that it learns.
    flops: of one row forward.
    numbers: values that its layers write for one row.
    operations: layers that one forward pass runs.
    """

    program: str
    inputs: tuple[int, ...]
    outputs: int
    params: int
    flops: float
    numbers: int
    operations: int


@dataclass(frozen=True)
class Kernel:
    """One kind of work with its size. `pearl_devices.kernels.kernel` builds it with its counts.

    Attributes:
        kind: for example `update.dqn`; the records in `pearl_devices.kernels` describe each kind.
        dims: named sizes. A size is an integer or, for a network, the tuple of its widths under the
            network's name.
        flops: floating point operations of one firing (a multiply-add counts as two).
        bytes_in: bytes that one firing must read at least once.
        bytes_out: bytes that one firing must write at least once.
        resident_bytes: scratch memory that stays allocated between firings, without state.
        program: `module:callable` or an environment id, resolved by the backend at `bind`; None for
            kinds without user-defined programs.
        args: keyword arguments of `program`.
        modules: networks that are user-defined modules, by name; in dims they have two widths.
        interface: for a kernel that acts in evaluation, the user-defined kernels between
            environments and network, in firing order (`pearl_devices.kernels.interface`).
    """

    kind: str
    dims: Mapping[str, Dim] = field(default_factory=dict)
    flops: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    resident_bytes: float = 0.0
    program: str | None = None
    args: Mapping[str, Arg] = field(default_factory=dict)
    modules: Mapping[str, Module] = field(default_factory=dict)
    interface: tuple[Kernel, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", MappingProxyType(dict(self.dims)))
        object.__setattr__(self, "args", MappingProxyType(dict(self.args)))
        object.__setattr__(self, "modules", MappingProxyType(dict(self.modules)))
        for name in ("flops", "bytes_in", "bytes_out", "resident_bytes"):
            if wrong := explain_misfit(getattr(self, name)):
                raise ValueError(f"kernel {self.kind}: {name} {wrong}")

    def __hash__(self) -> int:
        return hash((self.kind, tuple(sorted(self.dims.items())), self.program))

    def dim(self, name: str) -> int:
        """Return the size `name` as an integer.

        Raises:
            KeyError: the kernel has no such size; the text names its kind and sizes.
        """
        value = self.dims.get(name)
        if not isinstance(value, int):
            raise KeyError(f"kernel {self.kind} has no size '{name}'; it has {sorted(self.dims)}")
        return value

    @property
    def networks(self) -> dict[str, tuple[int, ...]]:
        """Name → widths, input first, of every network; the order is that of `dims`."""
        return {name: size for name, size in self.dims.items() if isinstance(size, tuple)}

    def layers(self, name: str | None = None) -> tuple[int, ...]:
        """Return the widths of network `name`, input first; without a name, of the only network.

        Raises:
            KeyError: the kernel has no such network, or `name` is None and the kernel has several
                networks or none.
        """
        networks = self.networks
        if name is None and len(networks) == 1:
            return next(iter(networks.values()))
        if name is None or name not in networks:
            which = "not exactly one network" if name is None else f"no network '{name}'"
            raise KeyError(f"kernel {self.kind} has {which}; it has {sorted(self.dims)}")
        return networks[name]
