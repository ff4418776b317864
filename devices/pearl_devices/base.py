"""Devices, links and platforms, calls of kernels, and the errors of devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Protocol

from pearl_devices.validation import LARGEST, explain_misfit, is_number, is_whole, quote

Buffers = MutableMapping[str, Any]
"""Named numpy arrays: everything that a kernel reads or writes (`kernels.arrays` names them)."""


class Pending(Protocol):
    """A firing that is not complete when its call returns."""

    def done(self) -> bool:
        """Whether the firing is complete: its results may be read and its inputs overwritten."""


Call = Callable[[], "Pending | None"]
"""A bound kernel: each call computes one firing, takes no arguments and allocates nothing. A call
that returns None is complete. Only a mode that occupies its lane for less than its latency may
return a `Pending`."""


def finish(call: Call) -> None:
    """Wait until the device has completed everything that `call` began. Only calls on a device with
    memory of its own have the attribute `wait`. A clock around both measures the work."""
    wait = getattr(call, "wait", None)
    if wait is not None:
        wait()


TORCH_WIDTHS = (2, 4, 8, 16, 32, 64)
"""Numbers of cores of the CPU variants `torch-N`."""

_CORES = "by threads of torch's own; of gradient steps, on a CPU that has as many"
WIDE = {f"torch-{n}": f"takes {n} cores, {_CORES}" for n in TORCH_WIDTHS}
"""Variant → what the variant needs."""


def uses_several_cores(variant: str) -> bool:
    """Whether a call in this variant takes several cores of a CPU."""
    return variant.endswith("-pair") or variant in WIDE


IN_TURN, PROCESSES = "gymnasium", "processes"
"""CPU variants that step environments one after another, and each in a separate process. A plan
uses `processes` only if environments wait or the user names the variant."""

OPT_IN_VARIANTS = {
    "torch-bf16": "rounds to bfloat16; of the updates of continuous actions, on a CPU that "
    "multiplies bfloat16",
    "eager-bf16": "rounds to bfloat16; of the updates of continuous actions, on a GPU",
    "host-rows": "keeps the rows of a replay in the host's memory, where a GPU reads them; name it "
    "for replay_insert and replay_sample alike",
    "integer-tree": "rounds priorities to whole numbers and draws other rows; on a simulated FPGA; "
    "name it for replay_insert, replay_sample and replay_update alike",
    "envpool": "steps envpool's environments; needs the package envpool (the extra [envpool])",
}
"""Variant → the reason why plans use it only if the user names it: it computes other numbers than
the other variants, or its arrays lie elsewhere."""


class EnvironmentFailed(ValueError):
    """An environment failed, and the spec allows no restart or the restart failed too. The text
    names the environment, the step and the cause."""


class UnsupportedError(Exception):
    """A device or variant cannot run a kernel. The text names both and the reason."""


class KernelKindError(UnsupportedError):
    """The record of a user-defined kernel kind is missing, incomplete or fails. The text names its
    module and the reason."""


class KernelFailed(EnvironmentFailed):
    """A firing of a user-defined kernel kind failed. The text names its function and the reason. A
    run ends as after a failed environment."""


class DeviceFailed(EnvironmentFailed):
    """A device failed during a run. The text names the device, the kernel and the way out. The run
    ends as after a failed environment."""


class DeviceKindError(ValueError):
    """The file of a device kind is missing, incomplete or fails. The text names file and reason."""


class FigureError(ValueError):
    """A figure that planning needs is missing for a device. The text names device and figure."""


def _check(owner: str, name: str, value: object, *, positive: bool) -> None:
    if wrong := explain_misfit(value, above=positive):
        raise ValueError(f"{owner}: {name} {wrong}")


@dataclass(frozen=True)
class Device:
    """A device that runs kernels.

    Attributes:
        kind: its backend, a key of `pearl_devices.BACKENDS`; `null` runs nothing, for given costs.
        width: units that lanes share.
        width_unit: the unit of its kind: cores, sm, pe, ….
        max_lanes: serial executors that may run in parallel on it.
        memory_bytes: size of its main memory.
        peak_flops_per_s: float32, at full width.
        memory_bytes_per_s: bandwidth of its main memory.
        overhead_s: cost of starting one kernel (call, launch or doorbell).
        idle_power_w: power of the whole device when idle.
        active_power_w: power of the whole device when fully busy.
        context_power_w: power while a program holds the idle device (a CUDA context), if more.
        when_unused: `idle` if it draws idle power even if a plan leaves it out, else `off`.
        unified_memory: it works in the memory of the host device, so nothing is copied.
        simulated: no such hardware is driven; figures come from a model.
        real: it is part of this machine, so kernels can be bound to it.
        model: its product name.
        design: for a simulated device, one of its kind's `DESIGNS`; "" means the first.
        figures: further numbers of its kind (dsp, ram_block_bits, clock_hz, l2_bytes, …), SI units.
        sources: field or figure → the origin of the number; "assumed" if no source was found.
        host: the computer that holds it, on a platform of several hosts (`pearl_devices.hosts`), or
            "".
        unit_memory_bytes: memory of one unit, if units have separate memories, such as the GPUs of
            a pool. Each unit of a lane holds the arrays of all modes on that lane.
        draws_by_work: whether the power of a kind by module path follows its work; None for others.

    Raises:
        ValueError: a number is out of range; the text names device and field.
    """

    name: str
    kind: str = "null"
    width: int = 1
    width_unit: str = "cores"
    max_lanes: int = 1
    memory_bytes: float = math.inf
    peak_flops_per_s: float = 1e9
    memory_bytes_per_s: float = 1e9
    overhead_s: float = 0.0
    idle_power_w: float = 0.0
    active_power_w: float = 0.0
    context_power_w: float = 0.0
    when_unused: Literal["idle", "off"] = "idle"
    unified_memory: bool = False
    simulated: bool = False
    real: bool = False
    model: str = ""
    design: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    unit_memory_bytes: float = math.inf
    draws_by_work: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        owner = f"device {self.name!r}"
        for name in ("width", "max_lanes"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise ValueError(
                    f"{owner}: {name} is {quote(value)}; it must be a whole number above 0"
                )
        for name in ("peak_flops_per_s", "memory_bytes_per_s"):
            _check(owner, name, getattr(self, name), positive=True)
        for name in ("overhead_s", "idle_power_w", "active_power_w", "context_power_w"):
            _check(owner, name, getattr(self, name), positive=False)
        for name in ("memory_bytes", "unit_memory_bytes"):
            if getattr(self, name) != math.inf:
                _check(owner, name, getattr(self, name), positive=True)
        for name, value in self.figures.items():
            _check(owner, f"figure {name}", value, positive=False)
        if self.active_power_w < self.idle_power_w:
            raise ValueError(
                f"{owner}: active_power_w {self.active_power_w} is below "
                f"idle_power_w {self.idle_power_w}; busy cannot draw less than idle"
            )
        if self.active_power_w < self.context_power_w:
            raise ValueError(
                f"{owner}: active_power_w {self.active_power_w} is below context_power_w "
                f"{self.context_power_w}; busy cannot draw less than waiting"
            )

    @property
    def sustained_flops_per_s(self) -> float:
        """float32 rate under load: the peak times the figure `sustained_share`. The figure is below
        1 if the power limit of a card is below the power of the peak rate."""
        return self.peak_flops_per_s * self.figures.get("sustained_share", 1.0)

    @property
    def waiting_power_w(self) -> float:
        """Power of the device while a program uses it and it does nothing, in watts."""
        return max(self.idle_power_w, self.context_power_w)

    def __hash__(self) -> int:
        return hash((self.name, self.kind, self.width, self.model))


LAUNCH_S = 5e-6  # assumed: one CUDA launch, of the order vendors and users report (3 to 20 us)
PCIE_LATENCY_S = 10e-6  # assumed: one small copy with its driver call
GPU_IDLE_SHARE = 0.1  # assumed: idle power of a GPU as a share of its power limit

UNTIMED = 0.5, 3.0
"""Assumed band of a link that was not timed."""


@dataclass(frozen=True)
class Link:
    """A connection between two devices, usable both ways.

    In a cycle a message costs latency_s + bytes / bytes_per_s. It occupies its payer for
    per_message_s + bytes / bytes_per_s.

    Attributes:
        paid_by: the payer. `link`: the link moves data itself (DMA). `lane`: a lane of the device
            at the end that is not the host; the sender's if neither end is. `nobody`: messages
            never wait for each other, as in a switched network with room to spare (the assumption
            of list schedulers).
        band: factors on the seconds that enclose nine in ten messages; (1, 1) means exact.
    """

    a: str
    b: str
    latency_s: float
    bytes_per_s: float
    per_message_s: float = 0.0
    energy_j_per_byte: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)
    paid_by: Literal["link", "lane", "nobody"] = "link"
    band: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        object.__setattr__(self, "band", tuple(self.band))
        if self.paid_by not in ("link", "lane", "nobody"):
            raise ValueError(
                f"link {self.name}: paid_by is {self.paid_by!r}; it must be 'link', 'lane' or "
                "'nobody'"
            )
        if self.a == self.b:
            raise ValueError(
                f"link {self.name}: both ends are {self.a!r}; a link joins two devices"
            )
        _check(f"link {self.name}", "bytes_per_s", self.bytes_per_s, positive=True)
        for name in ("latency_s", "per_message_s", "energy_j_per_byte"):
            _check(f"link {self.name}", name, getattr(self, name), positive=False)
        if len(self.band) != 2 or not all(map(is_number, self.band)):
            raise ValueError(
                f"link {self.name}: band is {quote(self.band)}; it must be two numbers: low, high"
            )
        if not 0 < self.band[0] <= 1 <= self.band[1] < math.inf:
            raise ValueError(
                f"link {self.name}: band is {quote(self.band)}; its low end must be above 0 and at "
                "most 1, its high end finite and at least 1"
            )

    def __hash__(self) -> int:
        return hash((self.a, self.b))

    def slower(self, factor: float) -> Link:
        """Return the link with all its seconds multiplied by `factor`."""
        return replace(
            self,
            latency_s=factor * self.latency_s,
            per_message_s=factor * self.per_message_s,
            bytes_per_s=min(LARGEST, self.bytes_per_s / factor),
        )

    @property
    def name(self) -> str:
        return f"{self.a}-{self.b}"


@dataclass(frozen=True)
class Platform:
    """Devices and the links between them.

    Attributes:
        host: the host device. It is always on; devices without a direct link communicate through
            it.
        notes: what the machine told and no device shows, one sentence each; no part of a
            comparison.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    host: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        names = [d.name for d in self.devices]
        if not names:
            raise ValueError(f"platform {self.name!r} has no device; it needs at least one")
        if len(set(names)) != len(names):
            raise ValueError(f"platform {self.name!r}: device names repeat: {names}")
        if not self.host:
            object.__setattr__(self, "host", names[0])
        if self.host not in names:
            raise ValueError(
                f"platform {self.name!r}: host {self.host!r} is no device of it; it has {names}"
            )
        object.__setattr__(self, "links", (*self.links, *self._handovers()))
        pairs: set[frozenset[str]] = set()
        for link in self.links:
            for end in (link.a, link.b):
                if end not in names:
                    raise ValueError(
                        f"platform {self.name!r}: link {link.name} names {end!r}; it has {names}"
                    )
            pair = frozenset((link.a, link.b))
            if pair in pairs:
                raise ValueError(
                    f"platform {self.name!r}: two links join {link.a} and {link.b}; one is allowed"
                )
            pairs.add(pair)
        self._check_names()
        for device in names:
            if device != self.host:
                self.route(self.host, device)

    def _handovers(self) -> Iterator[Link]:
        """Links for devices with unified memory that have none: no bytes cross, and a notification
        takes as long as starting a kernel."""
        linked = {end for link in self.links for end in (link.a, link.b)}
        for d in self.devices:
            if d.unified_memory and d.name not in (*linked, self.host):
                told = f"unified memory: the time in which {d.name} starts a kernel"
                sources = {"latency_s": told, "bytes_per_s": "unified memory: nothing is copied"}
                yield Link(self.host, d.name, d.overhead_s, LARGEST, sources=sources, band=UNTIMED)

    def _check_names(self) -> None:
        """Refuse equal names: a plan calls a link `a-b` and the lanes of a device `device.0`, …."""
        ends: dict[str, Link] = {}
        for link in self.links:
            other = ends.setdefault(link.name, link)
            if other is not link:
                raise ValueError(
                    f"platform {self.name!r}: the link of {other.a!r} and {other.b!r} and that of "
                    f"{link.a!r} and {link.b!r} are both called {link.name!r}; a plan tells them "
                    "apart by name: rename a device"
                )
            device, _, number = link.name.rpartition(".")
            if number.isdecimal() and any(d.name == device for d in self.devices):
                raise ValueError(
                    f"platform {self.name!r}: the link of {link.a!r} and {link.b!r} is called "
                    f"{link.name!r}, like a lane of device {device!r}; a plan tells them apart by "
                    "name: rename a device"
                )

    def idle_w(self, used: Collection[str] = ()) -> dict[str, float]:
        """Device → idle watts under a plan that uses `used`. Every plan uses the host."""
        return {
            d.name: d.waiting_power_w
            if d.name in used or d.name == self.host
            else (d.idle_power_w if d.when_unused == "idle" else 0.0)
            for d in self.devices
        }

    def device(self, name: str) -> Device:
        """Return the device called `name`.

        Raises:
            KeyError: the platform has no such device; the text names all devices.
        """
        device = self._by_name.get(name)
        if device is None:
            raise KeyError(
                f"platform {self.name!r} has no device {name!r}; it has {list(self._by_name)}"
            )
        return device

    @cached_property
    def _by_name(self) -> dict[str, Device]:
        return {d.name: d for d in self.devices}

    @cached_property
    def _direct(self) -> dict[frozenset[str], Link]:
        return {frozenset((link.a, link.b)): link for link in self.links}

    def route(self, src: str, dst: str) -> tuple[Link, ...]:
        """Return the links that a message from `src` to `dst` crosses: none, one, or two through
        the host.

        Raises:
            ValueError: no link joins one of the two devices and the host.
        """
        found = self._routes.get((src, dst))
        if found is None:
            found = self._routes[src, dst] = self._find_route(src, dst)
        return found

    @cached_property
    def _routes(self) -> dict[tuple[str, str], tuple[Link, ...]]:
        return {}

    def _find_route(self, src: str, dst: str) -> tuple[Link, ...]:
        if src == dst:
            return ()
        link = self._direct.get(frozenset((src, dst)))
        if link:
            return (link,)
        if self.host in (src, dst):
            raise ValueError(
                f"platform {self.name!r}: no link joins {src} and {dst}; "
                "every device needs a link to the host"
            )
        return self.route(src, self.host) + self.route(self.host, dst)
