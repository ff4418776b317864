"""Interfaces of a device kind (`Backend`) and of a device with separate memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Required, TypedDict

from pearl_devices.base import Buffers, Call, Device
from pearl_devices.kernel import Kernel


class FiringCost(TypedDict, total=False):
    """Cost of one firing of a kernel on a device, as the `ESTIMATE` of a device kind returns it.

    latency_s: start to result, above 0.
    occupancy_s: time that the lane is occupied, at most latency_s; default latency_s.
    low_s, high_s: 90 % band of latency_s; default exact.
    energy_j: joules above idle; default modelled from the device's power.
    rung: origin of the number, as in `pearl_estimators.Estimate`; default closed_form.
    bound_by: compute, memory, overhead or given (the default).
    source: formula, file or datasheet; default the kind.
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
    """The result of `offers` for a kernel that a device cannot run: no pairs, but the reason.

    why: the need and the limit in one line, such as "needs 1.36 MB of SRAM, has 100 KiB".
        `pearl plan --explain` and errors about infeasible plans print it after the device's name.
    """

    why: str

    def __new__(cls, why: str) -> Refused:
        """Raise ValueError if `why` is not a line of text."""
        if not (isinstance(why, str) and why.strip() and why.isprintable()):
            raise ValueError(f"a refusal needs one line that says why; {why!r} was given")
        refused = super().__new__(cls, ())
        refused.why = why
        return refused

    def __repr__(self) -> str:
        return f"Refused({self.why!r})"


Pair = tuple[Any, Any]
"""An array of the host, and its twin on the device."""


class DeviceMemory(Protocol):
    """The separate memory of a device during one run. Its arrays are twins of the host's arrays.

    The runtime decides which arrays to copy (`docs/protocol.md`). Lanes of such a device run in
    this process. Every method may raise DeviceFailed.
    """

    def holds(self, kernel: Kernel, variant: str, name: str) -> bool:
        """Whether a kernel uses this array in the device's memory; else it uses the host's."""

    def twin(self, array: Any) -> Any:
        """Make an array on the device with the shape, type and values of a host array."""

    def part(self, twin: Any, first: int, shape: tuple[int, ...]) -> Any:
        """Return a view of a twin that begins at element `first`."""

    def firing(
        self,
        call: Call,
        kernel: Kernel,
        loads: tuple[Pair, ...],
        stores: tuple[Pair, ...],
        lane: str,
    ) -> Call:
        """Make a firing: copy `loads` from the host, call, copy `stores` to the host.

        If the firing copies anything, it is complete when it returns. Else it is queued in the
        order of its lane, and its attribute `wait` waits for it. Its attribute `copied_ns`, if any,
        is a list of one number: nanoseconds that copies took in the firing thread.

        call: what `bind` returned for `kernel`.
        """

    def load(self, pairs: tuple[Pair, ...]) -> None:
        """Copy arrays from the host to the device; complete when it returns."""

    def store(self, pairs: tuple[Pair, ...]) -> None:
        """Copy arrays from the device to the host, after all earlier work of the device."""


class Backend(Protocol):
    """A device kind: a module that defines these names; see `pearl_devices.BACKENDS`.

    WIDTH_UNIT: the unit of `Device.width`.
    SIMULATED: no such hardware is driven; the default of `simulated` in platform files.
    ESTIMATE: function (kernel, device, variant, width) → FiringCost, or its name in another module.
        It may also return a `pearl_estimators.Estimate`. It raises FigureError if a figure of the
        device is missing.

    Optional names:
    EXAMPLE: a `Device` of the kind with all necessary figures, for the contracts.
    DRAWS_BY_WORK: True if its power above waiting follows arithmetic and memory traffic; else its
        power follows the occupied share of its width.
    MOVED_BYTES(kernel, device, variant, width): bytes of memory traffic of one firing, for its
        energy where DRAWS_BY_WORK; also `module:function`. Default: the kernel's own arrays.
    on_host(kernel, variant): the arrays that a variant keeps in the host's memory; default: none.
    LAUNCHED_BY_HOST: True if its ESTIMATE gets the host CPU's clock as the figure `host_clock_hz`.
    DESIGNS: designs of a simulated kind. `design` in a platform file selects one (`Device.design`);
        the first is the default.
    check(device): raises FigureError if a figure of a platform file is missing.
    present(device): whether a device of a platform file is part of this machine; default: no.
    memory(number): returns the `DeviceMemory` of a device, a new one for each run. Without it,
        kernels of the kind work in the host's memory.
    first_use(device, number, uses): called before a run; returns a line for each (kernel, variant)
        of `uses` that computes other values than the CPU. It may cache passed checks.
    COUNTER, TIMER, VERIFY: functions, or their names as `module:function`. `number` is the number
        of a device among those of its kind.
    COUNTER(number): an energy counter (`pearl_estimators.energy.Counter`, ""), or (None, the
        reason).
    TIMER(device, number, seconds): times a device for plans (`pearl calibrate`). Returns a result
        with `to_json`, and its file. Raises UnsupportedError if nothing drives the device.
    VERIFY(device, number): checks every kernel that the device offers (`pearl devices --verify`).
    crowding(device, engines): why the engines of a plan do not fit together on a device, empty if
        they do. engines: kernel, variant and width of each task there.
    tell_unchecked(device): the need of engines that the kind does not check on a device, or "".
    verilog(kernel, device, variant, width): what `pearl rtl` writes of a mode, or None.
    """

    WIDTH_UNIT: str
    SIMULATED: bool
    ESTIMATE: str | Callable[[Kernel, Device, str, int], FiringCost]

    def offers(self, kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
        """Return the ways to run `kernel`, (variant, width) pairs; `Refused` if there is none.

        Import neither torch nor numba.
        """

    def bind(self, kernel: Kernel, variant: str, buffers: Buffers) -> Call:
        """Prepare `kernel` over `buffers` once; return the call of one firing. On a device with
        separate memory, the call may have a `note`: a sentence for the run's log, or an empty text.

        Raises:
            UnsupportedError: the kind cannot run this kernel in this variant; the text names both.
        """
