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
"""Named numpy arrays: all that a kernel reads or writes, by names of `kernels.arrays`."""


class Pending(Protocol):
    """A firing that has begun and is not complete when its call returns."""

    def done(self) -> bool:
        """Whether it is complete: what it writes may be read, what it reads written."""


Call = Callable[[], "Pending | None"]
"""A bound kernel: one firing a call, no arguments, nothing allocated. None: it is complete; only a
mode whose estimate occupies its lane for less than its latency may return something else."""


def finish(call: Call) -> None:
    """Waits until all is complete that a call has begun on a device with memory of its own, whose
    calls have an attribute `wait`; so that a clock around a call and this measures the work."""
    wait = getattr(call, "wait", None)
    if wait is not None:
        wait()


TORCH_WIDTHS = (2, 4, 8, 16, 32, 64)
"""Cores that the variants `torch-N` of a CPU take."""

_CORES = "by threads of torch's own; of gradient steps, on a CPU that has as many"
WIDE = {f"torch-{n}": f"takes {n} cores, {_CORES}" for n in TORCH_WIDTHS}
"""These variants → what they need."""


def uses_several_cores(variant: str) -> bool:
    """Whether a call of a CPU takes several cores in this variant."""
    return variant.endswith("-pair") or variant in WIDE


IN_TURN, PROCESSES = "gymnasium", "processes"
"""The variants of a CPU that step environments one after the other, and each in a process of its
own. A plan has the second where environments wait, or the user names it."""

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
"""Variants that a plan has only where the user names them, since they compute something else than
the others do, or have arrays in another place → what."""


class EnvironmentFailed(ValueError):
    """An environment failed, and nobody wants it made anew, or that did not help; the text names
    it, the step and the cause."""


class UnsupportedError(Exception):
    """A kernel was bound to a device or variant that cannot run it; the text says which and why."""


class KernelKindError(UnsupportedError):
    """The record of a kernel kind of the user's own is missing, incomplete or fails; the text names
    its module and the reason."""


class KernelFailed(EnvironmentFailed):
    """A firing of a kernel kind of the user's own failed; the text names its function and the
    reason. It ends a run as an environment that fails does."""


class DeviceFailed(EnvironmentFailed):
    """A device failed while a run used it; the text names it, the kernel and the way out. It ends a
    run as an environment that fails does."""


class DeviceKindError(ValueError):
    """The file of a device kind is missing, incomplete or fails; the text names file and reason."""


class FigureError(ValueError):
    """A device gives too little to be planned for; the text names device and figure."""


def _check(owner: str, name: str, value: object, *, positive: bool) -> None:
    if wrong := explain_misfit(value, above=positive):
        raise ValueError(f"{owner}: {name} {wrong}")


@dataclass(frozen=True)
class Device:
    """One place where kernels run.

    kind: its backend, a key of `pearl_devices.BACKENDS`; by default `null`, which runs nothing, for
        costs that are given.
    width: units that lanes share.
    width_unit: the unit, as its kind names it: cores, sm, pe, ….
    max_lanes: serial executors that may run side by side on it.
    memory_bytes: size of its main memory.
    peak_flops_per_s: float32, all of its width.
    memory_bytes_per_s: bandwidth of its main memory.
    overhead_s: cost of starting one kernel (call, launch or doorbell).
    idle_power_w, active_power_w: draw of the whole device, doing nothing and fully busy.
    context_power_w: draw while a program holds the device and it does nothing, where that is more
        than idle_power_w (a GPU with a CUDA context).
    when_unused: `idle` if it draws idle power even when a plan leaves it out, `off` if not.
    unified_memory: it works in the memory of the host device, so that nothing is copied.
    simulated: no such hardware is driven; figures come from a model.
    real: it is part of this machine and kernels can be bound to it.
    model: the name it is sold by.
    design: of a simulated device, one of its kind's `DESIGNS`; "" is the first of them.
    figures: further numbers of its kind (dsp, ram_block_bits, clock_hz, l2_bytes, …), SI units.
    sources: field or figure → the origin of the number; "assumed" where nothing was found.
    host: the computer that holds it, on a platform of several (`pearl_devices.hosts`), else "".
    unit_memory_bytes: memory of one unit, of a device whose units have memory of their own, such as
        the GPUs of a pool. Each unit of a lane holds what the modes on that lane keep there.

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
        """Rate under load: the peak times the figure `sustained_share`, of cards whose limit of
        power is below what the peak would draw."""
        return self.peak_flops_per_s * self.figures.get("sustained_share", 1.0)

    @property
    def waiting_power_w(self) -> float:
        """Draw of the device in use, while it does nothing."""
        return max(self.idle_power_w, self.context_power_w)

    def __hash__(self) -> int:
        return hash((self.name, self.kind, self.width, self.model))


LAUNCH_S = 5e-6  # assumed: one CUDA launch, of the order vendors and users report (3 to 20 us)
PCIE_LATENCY_S = 10e-6  # assumed: one small copy with its driver call
GPU_IDLE_SHARE = 0.1  # assumed: idle power of a GPU as a share of its power limit

UNTIMED = 0.5, 3.0
"""Band of a link that nobody timed: assumed."""


@dataclass(frozen=True)
class Link:
    """A connection between two devices, usable both ways.

    In a cycle a message costs latency_s + bytes / bytes_per_s; it takes whoever pays for it
    per_message_s + bytes / bytes_per_s.
    paid_by: `link` if it moves data itself (DMA), `lane` if a lane of the device at its end that is
    not the host does (of two such ends, the sender's), `nobody` if messages never wait for one
    another: a switched network with room to spare, as list schedulers in the literature assume it.
    band: factors on its seconds between which nine in ten messages are; (1, 1): it is exact.
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
        """The link with all its seconds times a factor."""
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

    host: the host device: always on; two devices without a direct link talk through it.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    host: str = ""

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
        """What stands for a link of a device with unified memory that has none: no bytes cross it,
        and being told of a result takes what starting a kernel takes."""
        linked = {end for link in self.links for end in (link.a, link.b)}
        for d in self.devices:
            if d.unified_memory and d.name not in (*linked, self.host):
                told = f"unified memory: what {d.name} takes to start a kernel"
                sources = {"latency_s": told, "bytes_per_s": "unified memory: nothing is copied"}
                yield Link(self.host, d.name, d.overhead_s, LARGEST, sources=sources, band=UNTIMED)

    def _check_names(self) -> None:
        """A plan calls a link `a-b` and the lanes of a device `device.0`, `device.1`, …: no two of
        these may be alike."""
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
        """Device → watts that it draws doing nothing under a plan that uses these devices. The
        host is used by every plan."""
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
