"""The interface of a device kind (`Backend`), and of a device with memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Required, TypedDict

from pearl_devices.base import Buffers, Call, Device
from pearl_devices.kernel import Kernel


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


class Refused(tuple[tuple[str, int], ...]):
    """What `offers` returns for a kernel that a device cannot run: no way, and the reason.

    why: the need and the limit in one line, such as "needs 1.36 MB of SRAM, has 100 KiB". Plans
    that cannot be made and `pearl plan --explain` print the line after the device's name.
    """

    why: str

    def __new__(cls, why: str) -> Refused:
        """Raises ValueError where `why` is no line of text."""
        if not (isinstance(why, str) and why.strip() and why.isprintable()):
            raise ValueError(f"a refusal needs one line that says why; {why!r} was given")
        refused = super().__new__(cls, ())
        refused.why = why
        return refused

    def __repr__(self) -> str:
        return f"Refused({self.why!r})"


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
        its attribute `wait` waits for it. Its attribute `copied_ns`, if any, is a list of one
        number: nanoseconds that copies took of the thread that fires.

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

    More are optional. `EXAMPLE` is a `Device` of the kind with all figures that it needs, on which
    the contracts of `pearl.testing` are run. `DRAWS_BY_WORK` True: its draw above waiting follows
    its arithmetic and memory traffic, else the share of its width that is taken. `LAUNCHED_BY_HOST`
    True: its ESTIMATE sees the clock of the CPU beside it, as figure `host_clock_hz`.
    `check(device)` raises FigureError where a figure of a platform file is missing. `DESIGNS` names
    the designs of a simulated kind, of which `design` in a platform file chooses one
    (`Device.design`); the first is
    the default. `present(device)` says whether a
    device of a platform file is part of this machine; without it, none is. `COUNTER` measures
    energy: a function, or its name as `module:function`, from the number of a device among
    those of its kind to (`pearl_estimators.energy.Counter`, "") or (None, the reason why there
    is none). `TIMER` times a device for plans (`pearl calibrate`): a function, or its name,
    from a device, its number among those of its kind and seconds to what is kept, an object
    with `to_json`, and its file; UnsupportedError where nothing drives it. `VERIFY` is a
    function, or its name, from a device and its number to the verdict on every kernel that it
    offers (`pearl devices --verify`). `memory(number)` returns the `DeviceMemory` of such a
    device, anew for each run; kernels of a kind without it work in the host's memory.
    `first_use(device, number, uses)` returns a line for each of these (kernel, variant) that
    computes something else than the CPU; it is asked before a run, and may keep what has
    passed.
    """

    WIDTH_UNIT: str
    SIMULATED: bool
    ESTIMATE: str | Callable[[Kernel, Device, str, int], FiringCost]

    def offers(self, kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
        """The ways `device` can run `kernel`: (variant, width) pairs; `Refused` if it cannot.

        Pure data: imports neither torch nor numba.
        """

    def bind(self, kernel: Kernel, variant: str, buffers: Buffers) -> Call:
        """Prepare `kernel` once over `buffers`; the hot path calls the result. On a device with
        memory of its own it may have a `note`: a sentence for the run's log, or an empty one.

        Raises:
            UnsupportedError: it cannot run this kernel in this variant; the text names both.
        """
