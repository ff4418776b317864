"""Devices, links and platforms, and the interface of a device kind (`Backend`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Protocol, Required, TypedDict

from pearl_devices.given import is_whole, misfit, shown
from pearl_devices.kernel import Kernel

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


ASKED = {
    "torch-bf16": "rounds to bfloat16; of the updates of continuous actions, on a CPU that "
    "multiplies bfloat16",
    "eager-bf16": "rounds to bfloat16; of the updates of continuous actions, on a GPU",
    "host-rows": "keeps the rows of a replay in the host's memory, where a GPU reads them; name it "
    "for replay_insert and replay_sample alike",
    "envpool": "steps envpool's versions of the environments; needs the package envpool (the extra "
    "[envpool])",
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
    if wrong := misfit(value, above=positive):
        raise ValueError(f"{owner}: {name} {wrong}")


@dataclass(frozen=True)
class Device:
    """One place where kernels run.

    kind: its backend, a key of `pearl_devices.BACKENDS`.
    width: units that lanes share.
    width_unit: the unit, as its kind names it: cores, sm, pe, ….
    max_lanes: serial executors that may run side by side on it.
    memory_bytes: size of its main memory.
    peak_flops_per_s: float32, all of its width.
    memory_bytes_per_s: bandwidth of its main memory.
    overhead_s: cost of starting one kernel (call, launch or doorbell).
    idle_power_w, active_power_w: draw of the whole device, doing nothing and fully busy.
    when_unused: `idle` if it draws idle power even when a plan leaves it out, `off` if not.
    simulated: no such hardware is driven; figures come from a model.
    real: it is part of this machine and kernels can be bound to it.
    model: the name it is sold by.
    figures: further numbers of its kind (dsp, m20k_bits, clock_hz, l2_bytes, …), SI units.
    sources: field or figure → the origin of the number; "assumed" where nothing was found.

    Raises:
        ValueError: a number is out of range; the text names device and field.
    """

    name: str
    kind: str
    width: int = 1
    width_unit: str = "cores"
    max_lanes: int = 1
    memory_bytes: float = math.inf
    peak_flops_per_s: float = 1e9
    memory_bytes_per_s: float = 1e9
    overhead_s: float = 0.0
    idle_power_w: float = 0.0
    active_power_w: float = 0.0
    when_unused: Literal["idle", "off"] = "idle"
    simulated: bool = False
    real: bool = False
    model: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", MappingProxyType(dict(self.figures)))
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        owner = f"device {self.name!r}"
        for name in ("width", "max_lanes"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise ValueError(
                    f"{owner}: {name} is {shown(value)}; it must be a whole number above 0"
                )
        for name in ("peak_flops_per_s", "memory_bytes_per_s"):
            _check(owner, name, getattr(self, name), positive=True)
        for name in ("overhead_s", "idle_power_w", "active_power_w"):
            _check(owner, name, getattr(self, name), positive=False)
        if self.memory_bytes != math.inf:
            _check(owner, "memory_bytes", self.memory_bytes, positive=True)
        for name, value in self.figures.items():
            _check(owner, f"figure {name}", value, positive=False)
        if self.active_power_w < self.idle_power_w:
            raise ValueError(
                f"{owner}: active_power_w {self.active_power_w} is below "
                f"idle_power_w {self.idle_power_w}; busy cannot draw less than idle"
            )

    def __hash__(self) -> int:
        return hash((self.name, self.kind, self.width, self.model))


@dataclass(frozen=True)
class Link:
    """A connection between two devices, usable both ways.

    In a cycle a message costs latency_s + bytes / bytes_per_s; it takes whoever pays for it
    per_message_s + bytes / bytes_per_s.
    paid_by: `link` if it moves data itself (DMA), `lane` if a lane of the device at its end that is
    not the host does (of two such ends, the sender's), `nobody` if messages never wait for one
    another: a switched network with room to spare, as list schedulers in the literature assume it.
    """

    a: str
    b: str
    latency_s: float
    bytes_per_s: float
    per_message_s: float = 0.0
    energy_j_per_byte: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)
    paid_by: Literal["link", "lane", "nobody"] = "link"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
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

    def __hash__(self) -> int:
        return hash((self.a, self.b))

    @property
    def name(self) -> str:
        return f"{self.a}-{self.b}"


@dataclass(frozen=True)
class Platform:
    """The devices of one machine, the links between them, and which device is the host.

    The host is always on. Two devices without a direct link talk through the host.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    host: str = ""

    def __post_init__(self) -> None:
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

    def device(self, name: str) -> Device:
        """The device called `name`; a KeyError names those there are."""
        for device in self.devices:
            if device.name == name:
                return device
        raise KeyError(
            f"platform {self.name!r} has no device {name!r}; "
            f"it has {[d.name for d in self.devices]}"
        )

    @cached_property
    def _direct(self) -> dict[frozenset[str], Link]:
        return {frozenset((link.a, link.b)): link for link in self.links}

    def route(self, src: str, dst: str) -> tuple[Link, ...]:
        """The links a message from `src` to `dst` crosses: none, one, or two through the host."""
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


class FiringCost(TypedDict, total=False):
    """Cost of one firing of a kernel on a device, as a device kind's own `ESTIMATE` returns it.

    latency_s: start to result, above 0.
    occupancy_s: time that the lane is taken, at most latency_s; by default equal.
    low_s, high_s: 90 % band of latency_s; by default exact.
    energy_j: joules above idle; by default modelled from the device's power.
    rung: origin of the number, as in `pearl_estimators.Estimate`; by default closed_form.
    bound_by: compute, memory, overhead or given (the default).
    source: formula, file or datasheet; by default the kind.
    """

    latency_s: Required[float]
    occupancy_s: float
    low_s: float
    high_s: float
    energy_j: float
    rung: str
    bound_by: str
    source: str


Pair = tuple[Any, Any]
"""An array of the host, and the device's twin of it."""


class DeviceMemory(Protocol):
    """The memory of a device beside the host's, in one run: arrays there are twins of the host's.

    The runtime knows what crosses and says it (`docs/protocol.md`). Lanes of such a device run in
    this process. Every method may raise DeviceFailed.
    """

    def holds(self, kernel: Kernel, variant: str, name: str) -> bool:
        """Whether a kernel finds this array in the device's memory, else in the host's."""

    def twin(self, array: Any) -> Any:
        """A new array on the device, with the shape, type and values of one of the host's."""

    def part(self, twin: Any, first: int, shape: tuple[int, ...]) -> Any:
        """The part of a twin that begins with element `first`, sharing its memory."""

    def firing(
        self,
        call: Call,
        kernel: Kernel,
        loads: tuple[Pair, ...],
        stores: tuple[Pair, ...],
        lane: str,
    ) -> Call:
        """A firing: the twins of `loads` from the host, the call, the twins of `stores` to the
        host. Complete when it returns where anything crosses; else in the order of its lane, and
        its attribute `wait` waits for it.

        call: what `bind` returned for `kernel`.
        """

    def load(self, pairs: tuple[Pair, ...]) -> None:
        """Copy arrays from the host to the device, complete when it returns."""

    def store(self, pairs: tuple[Pair, ...]) -> None:
        """Copy arrays from the device to the host once all that began there before is complete."""


class Backend(Protocol):
    """A device kind: a module that defines these names; see `pearl_devices.BACKENDS`.

    WIDTH_UNIT: the unit of `Device.width`.
    SIMULATED: no such hardware is driven; the default of `simulated` in platform files.
    ESTIMATE: function (kernel, device, variant, width) → FiringCost, or the name of one in another
        module, which may also return a `pearl_estimators.Estimate`. It raises FigureError where the
        device lacks a figure.

    More are optional. `check(device)` raises FigureError where a figure of a platform file is
    missing. `present(device)` says whether a device of a platform file is part of this machine;
    without it, none is. `COUNTER` measures energy: a function, or its name as `module:function`,
    from the number of a device among those of its kind to (`pearl_estimators.energy.Counter`, "")
    or (None, the reason why there is none). `TIMER` times a device for plans (`pearl calibrate`): a
    function, or its name, from a device, its number among those of its kind and seconds to what is
    kept, an object with `to_json`, and its file; UnsupportedError where nothing drives it.
    `VERIFY` is a function, or its name, from a device and its number to the verdict on every kernel
    that it offers (`pearl devices --verify`).
    `memory(number)` returns the `DeviceMemory` of such a device, anew for each run; kernels of a
    kind without it work in the host's memory.
    `first_use(device, number, uses)` returns a line for each of these (kernel, variant) that
    computes something else than the CPU; it is asked before a run, and may keep what has passed.
    """

    WIDTH_UNIT: str
    SIMULATED: bool
    ESTIMATE: str | Callable[[Kernel, Device, str, int], FiringCost]

    def offers(self, kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
        """The ways `device` can run `kernel`: (variant, width) pairs; empty if it cannot.

        Pure data: imports neither torch nor numba.
        """

    def bind(self, kernel: Kernel, variant: str, buffers: Buffers) -> Call:
        """Prepare `kernel` once over `buffers`; the hot path calls the result. On a device with
        memory of its own it may have a `note`: a sentence for the run's log, or an empty one.

        Raises:
            UnsupportedError: it cannot run this kernel in this variant; the text names both.
        """
