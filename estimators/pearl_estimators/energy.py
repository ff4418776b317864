"""Energy of a time window: counted by the hardware, else modelled, and labelled with its source.

NVML counts the millijoules of an NVIDIA GPU since its driver was loaded (Volta and newer). The
counter moves only about every 100 ms, and an A100 or H100 samples a quarter of the time (arXiv
2312.02741). So a window shorter than `Nvml.shortest_s` is modelled; to time short kernels, repeat
them for seconds. RAPL counts the microjoules of a CPU package (Linux) with
everything that runs on it; reading it may need root.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from pearl_devices import Device, backend
from pearl_devices.system.kernel_files import POWERCAP, energy_zones, microjoules
from pearl_devices.user_imports import import_function
from pearl_estimators.power import energy_j

RAPL_REFRESH_S = 1e-3  # Intel software developer's manual, volume 3, section 15.10: about 1 ms
REFRESHES = 20  # least counter updates in a window, so that one more or less is at most 5 %
POLL_S = 60.0  # RAPL counts to 262 kJ (max_energy_range_uj), which takes four minutes at 1 kW


class Counter(Protocol):
    """An energy counter of a device.

    source: its name in reports, such as rapl.
    shortest_s: shortest window, in seconds, that it measures well.
    note: what the count includes.
    joules: joules counted since it was opened.
    """

    source: str
    shortest_s: float
    note: str

    def joules(self) -> float: ...


class Rapl:
    """All CPU packages of this machine together.

    `open` returns None and the reason if there are none or they cannot be read.
    """

    source = "rapl"
    shortest_s = REFRESHES * RAPL_REFRESH_S
    note = "whole CPU packages, other processes included"

    def __init__(self, zones: Mapping[Path, float]) -> None:
        self._zones = dict(zones)
        self._last = {zone: microjoules(zone) for zone in zones}
        self._total = 0.0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, root: Path = POWERCAP) -> tuple[Rapl | None, str]:
        try:
            zones = energy_zones(root)
        except (OSError, ValueError) as error:
            return None, f"RAPL cannot be read ({error})"
        return (cls(zones), "") if zones else (None, f"no RAPL package in {root}")

    def joules(self) -> float:
        """Return joules, also after a counter restarted at 0; call at least every POLL_S
        seconds."""
        with self._lock:
            for zone, most in self._zones.items():
                now = microjoules(zone)
                grown = now - self._last[zone]
                self._total += (grown if grown >= 0 else grown + most) * 1e-6
                self._last[zone] = now
            return self._total


def rapl(place: int) -> tuple[Counter | None, str]:
    """Return the counter of CPU devices: all packages of this machine, for every CPU device."""
    return Rapl.open(POWERCAP)


MODELLED = "modelled"


@dataclass(frozen=True)
class Energy:
    """Joules that one device drew in a window of `seconds`.

    device: name of the device.
    joules: energy over `seconds`.
    seconds: duration of the measurement.
    source: the counter, or MODELLED.
    note: what the number includes, or the reason why it is modelled.
    """

    device: str
    joules: float
    source: str
    seconds: float
    note: str = ""


class EnergyMeter:
    """Joules of devices between entering a `with` block and `read`.

    devices: with idle and active power for the model.
    counters: device name → its counter.
    absent: device name → the reason why it has no counter.

    A device without a counter, or with a window too short for its counter, is modelled: idle power
    all the time, and active minus idle power for the busy share of its width.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        counters: Mapping[str, Counter],
        absent: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._devices = tuple(devices)
        self._counters = dict(counters)
        self._absent = dict(absent or {})
        self._clock = clock
        self._start_s = clock()
        self._begin: dict[str, float] = {}
        self._over = threading.Event()
        self._poller: threading.Thread | None = None

    @classmethod
    def of(cls, devices: Iterable[Device]) -> EnergyMeter:
        """Return a meter of devices of this machine, each with the `COUNTER` of its kind."""
        counters: dict[str, Counter] = {}
        absent: dict[str, str] = {}
        known = tuple(devices)
        for i, device in enumerate(known):
            found: Counter | None = None
            why = f"a device of kind {device.kind} has no counter"
            opener = getattr(backend(device.kind), "COUNTER", None)
            if opener is not None:
                place = sum(d.kind == device.kind for d in known[:i])
                opener = import_function(opener) if isinstance(opener, str) else opener
                found, why = opener(place)
            if found is None:
                absent[device.name] = why
            else:
                counters[device.name] = found
        return cls(known, counters, absent)

    def __enter__(self) -> EnergyMeter:
        self._start_s = self._clock()
        self._begin = {name: counter.joules() for name, counter in self._counters.items()}
        if any(counter.source == "rapl" for counter in self._counters.values()):
            self._poller = threading.Thread(target=self._poll, name="energy", daemon=True)
            self._poller.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._poller is not None:
            self._poller.join()

    def _poll(self) -> None:
        """Read the counters before they restart at 0."""
        while not self._over.wait(POLL_S):
            for counter in self._counters.values():
                counter.joules()

    def read(self, busy_s: Mapping[str, float]) -> tuple[Energy, ...]:
        """Return the energy of every device since the block was entered.

        busy_s: device → sum of the busy seconds of its cores, for the model.
        """
        seconds = self._clock() - self._start_s
        return tuple(self._of(device, seconds, busy_s) for device in self._devices)

    def _of(self, device: Device, seconds: float, busy_s: Mapping[str, float]) -> Energy:
        counter = self._counters.get(device.name)
        if counter is not None and seconds >= counter.shortest_s:
            joules = counter.joules() - self._begin[device.name]
            return Energy(device.name, joules, counter.source, seconds, counter.note)
        why = self._absent.get(device.name, "no counter")
        if counter is not None:
            why = f"{seconds:.3g} s are too short for {counter.source}: {counter.shortest_s:g} s"
        joules = energy_j(device, seconds, busy_s.get(device.name, 0.0))
        return Energy(device.name, joules, MODELLED, seconds, why)


def total(parts: Iterable[Energy]) -> tuple[float, str]:
    """Return joules of all parts, and their sources joined with +: `rapl`, `modelled+nvml`, …"""
    known = tuple(parts)
    return sum(e.joules for e in known), "+".join(sorted({e.source for e in known}))
