"""Devices and links as platform files write them, with units and sources → `Device`, `Link`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    StrictBool,
    StrictStr,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticKnownError

from pearl.algorithms.options import STRICT
from pearl.spec.catalogue import catalogue
from pearl.spec.messages import Complaint, allow, suggest_nearest
from pearl.spec.quantities import Figure, Number, Sourced
from pearl.spec.units import dimension_of
from pearl.spec.yaml_reader import Where, show
from pearl_devices import (
    ABSENT_KINDS,
    BACKENDS,
    Device,
    Link,
    Platform,
    backend,
    estimator,
    trust_kind,
)
from pearl_devices.base import UNTIMED
from pearl_devices.rooms import absence_text

MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""Module path of a custom device kind."""

Count = Annotated[Sourced, Number(None, whole=True)]
Bytes = Annotated[Sourced, Number("bytes")]
BytesPerSecond = Annotated[Sourced, Number("bytes_per_s")]
FlopsPerSecond = Annotated[Sourced, Number("flops_per_s")]
JoulesPerByte = Annotated[Sourced, Number("j_per_byte", zero=True)]
Seconds = Annotated[Sourced, Number("s", zero=True)]
Watts = Annotated[Sourced, Number("w", zero=True)]


def _kind(given: Any) -> str:
    if isinstance(given, str) and (given in BACKENDS or MODULE.fullmatch(given)):
        return given
    names = ", ".join(map(repr, (*BACKENDS, "a module path such as my_package.npu")))
    if isinstance(given, str) and given in ABSENT_KINDS:
        text = absence_text(f"device kind {given}", ABSENT_KINDS[given])
        raise ValueError(f"{text}; allowed are {names}")
    raise PydanticKnownError("literal_error", {"expected": names})


Kind = Annotated[
    str,
    PlainValidator(_kind),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(BACKENDS)},
                {"pattern": f"^{MODULE.pattern}$"},
            ],
            "type": "string",
        }
    ),
]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DeviceEntry:
    """One device of a platform file."""

    kind: Kind = Field(description="Which backend runs it: a kind that ships, or a module.")
    model: StrictStr = Field(default="", max_length=200, description="Product name.")
    source: StrictStr | None = Field(
        default=None,
        min_length=1,
        description="Source of all numbers without their own source.",
    )
    width: Count = Field(description="Cores of a CPU, SMs of a GPU, processing elements.")
    max_lanes: Count | None = Field(
        default=None, description="Parallel serial executors; default 1."
    )
    memory: Bytes | None = Field(default=None, description="Main memory, e.g. 24 GiB.")
    peak: FlopsPerSecond = Field(description="float32 peak of the whole device, e.g. 60 TFLOP/s.")
    memory_bandwidth: BytesPerSecond = Field(description="Bandwidth of its memory, e.g. 936 GB/s.")
    overhead: Seconds = Field(description="Cost of starting one kernel, e.g. 5 us.")
    idle_power: Watts = Field(description="Power of the idle device, e.g. 20 W.")
    active_power: Watts = Field(description="Power of the busy device, e.g. 350 W.")
    context_power: Watts | None = Field(
        default=None,
        description="Power of the idle device while a program holds it, if higher, e.g. 80 W.",
    )
    when_unused: Literal["idle", "off"] | None = Field(
        default=None,
        description="Power state when unused. Default: off if simulated, otherwise idle.",
    )
    unified_memory: StrictBool = Field(
        default=False, description="It uses the host device's memory; no link needed."
    )
    simulated: StrictBool | None = Field(
        default=None, description="No such hardware is driven. Default: as its kind says."
    )
    design: StrictStr | None = Field(
        default=None,
        description="The design by which a simulated device is estimated, e.g. released.",
    )
    figures: dict[str, Annotated[Any, Figure()]] = Field(
        default_factory=dict,
        description="Further numbers; the name's end says the unit (clock_hz: 250 MHz), no unit "
        "is a count.",
    )


YOURS = "yours"
"""The source of a number for which a platform file names none."""

HERE = "here"
"""Written instead of a device: the CPU of this machine, from `pearl_devices.discover`."""


def _resolve_entry(given: Any) -> Any:
    """Return the device for an entry that is only a name of the catalogue, or HERE."""
    if not isinstance(given, str):
        return given
    known = catalogue()
    if given == HERE:
        return this_cpu()
    if given not in known:
        names = ", ".join(known)
        raise ValueError(
            f"a mapping, {HERE!r} (the CPU of this machine), or a device of the catalogue"
            f"{suggest_nearest(given, known)}: {names}"
        )
    return known[given]


@cache
def this_cpu() -> DeviceEntry:
    """Return an entry for HERE with the figures of a catalogue device, which are not used."""
    return TypeAdapter(DeviceEntry).validate_python(next(iter(catalogue().values())))


NamedDevice = Annotated[
    DeviceEntry, BeforeValidator(_resolve_entry, json_schema_input_type=DeviceEntry | str)
]

Ends = Annotated[tuple[StrictStr, ...], Field(min_length=2, max_length=2)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LinkEntry:
    """One link of a platform file."""

    between: Ends = Field(description="The two devices it joins, e.g. [cpu, gpu]; or hosts.")
    source: StrictStr | None = Field(
        default=None,
        min_length=1,
        description="Source of all numbers without their own source.",
    )
    latency: Seconds = Field(description="From sending to arrival of an empty message, e.g. 10 us.")
    bandwidth: BytesPerSecond = Field(description="Bytes per second, e.g. 16 GB/s.")
    per_message: Seconds | None = Field(
        default=None, description="How long a message occupies the link besides its bytes."
    )
    energy: JoulesPerByte | None = Field(
        default=None, description="Energy of a byte, e.g. 60 pJ/B."
    )
    paid_by: Literal["link", "lane"] | None = Field(
        default=None,
        description="Whose time a copy takes: link, its own (DMA), by default; lane, that of a "
        "lane of the device at its end that is not the host.",
    )


def _numbers(entry: DeviceEntry | LinkEntry) -> dict[str, Sourced]:
    """The numbers of an entry, each with its effective source; YOURS if it has none."""
    found = {f.name: getattr(entry, f.name) for f in fields(entry)}
    numbers = {key: value for key, value in found.items() if isinstance(value, Sourced)}
    return _with_sources(numbers, entry.source)


def _with_sources(numbers: Mapping[str, Sourced], source: str | None) -> dict[str, Sourced]:
    return {key: Sourced(n.value, n.source or source or YOURS) for key, n in numbers.items()}


def count_unsourced(platform: Platform) -> str:
    """Return how many of a platform's numbers come only from its file; empty if none does."""
    sources = [s for d in platform.devices for s in d.sources.values()]
    sources += [s for link in platform.links for s in link.sources.values()]
    mine = sources.count(YOURS)
    verb = "is" if mine == 1 else "are"
    return f"{mine} of {len(sources)} numbers of the platform {verb} yours" if mine else ""


def _figures(entry: DeviceEntry, at: Where, problems: list[Complaint]) -> dict[str, Sourced]:
    read: dict[str, Sourced] = {}
    for key, given in entry.figures.items():
        try:
            read[key] = Number(dimension_of(key), zero=True).read(given)
        except ValueError as error:
            inner = given.get("value", given) if isinstance(given, Mapping) else given
            problems.append(((*at, "figures", key), f"given {show(inner)}; {allow(error)}"))
    return _with_sources(read, entry.source)


def device_of(
    name: str, entry: DeviceEntry, at: Where, problems: list[Complaint], known: bool
) -> Device:
    numbers = _numbers(entry)
    figures = _figures(entry, at, problems)
    if known and "." in entry.kind:
        trust_kind(entry.kind)
    kind = backend(entry.kind) if known else None
    if kind is not None:
        estimator(entry.kind)
    simulated = entry.simulated
    if simulated is None:
        simulated = kind is None or kind.SIMULATED
    designs = getattr(kind, "DESIGNS", ())
    if entry.design is not None and kind is not None and entry.design not in designs:
        allowed = " or ".join(designs) or "none, for this kind has one design"
        problems.append(((*at, "design"), f"given {entry.design!r}; allowed: {allowed}"))
    renamed = {DEVICE_FIELDS.get(key, key): number for key, number in numbers.items()}
    value = {key: number.value for key, number in renamed.items()}
    sources = {key: number.source or "" for key, number in (renamed | figures).items()}
    device = Device(
        name=name,
        kind=entry.kind,
        width=int(value["width"]),
        width_unit=kind.WIDTH_UNIT if kind else "units",
        max_lanes=int(value.get("max_lanes", 1)),
        memory_bytes=value.get("memory_bytes", math.inf),
        peak_flops_per_s=value["peak_flops_per_s"],
        memory_bytes_per_s=value["memory_bytes_per_s"],
        overhead_s=value["overhead_s"],
        idle_power_w=value["idle_power_w"],
        active_power_w=value["active_power_w"],
        context_power_w=value.get("context_power_w", 0.0),
        when_unused=entry.when_unused or ("off" if simulated else "idle"),
        unified_memory=entry.unified_memory,
        simulated=simulated,
        model=entry.model,
        design=entry.design or "",
        figures={key: number.value for key, number in figures.items()},
        sources=sources,
        draws_by_work=(
            None
            if kind is None or entry.kind in BACKENDS
            else bool(getattr(kind, "DRAWS_BY_WORK", False))
        ),
    )
    if check := getattr(kind, "check", None):
        check(device)
    present = getattr(kind, "present", None)
    return replace(device, real=True) if present and present(device) else device


DEVICE_FIELDS = {
    "memory": "memory_bytes",
    "peak": "peak_flops_per_s",
    "memory_bandwidth": "memory_bytes_per_s",
    "overhead": "overhead_s",
    "idle_power": "idle_power_w",
    "active_power": "active_power_w",
    "context_power": "context_power_w",
}
LINK_FIELDS = {
    "latency": "latency_s",
    "bandwidth": "bytes_per_s",
    "per_message": "per_message_s",
    "energy": "energy_j_per_byte",
}
"""Key in a platform file → field of `Device` or `Link`."""


def link_of(entry: LinkEntry) -> Link:
    numbers = {LINK_FIELDS[key]: n for key, n in _numbers(entry).items()}
    values = {key: number.value for key, number in numbers.items()}
    sources = {key: number.source or "" for key, number in numbers.items()}
    a, b = entry.between
    return Link(
        a,
        b,
        latency_s=values["latency_s"],
        bytes_per_s=values["bytes_per_s"],
        per_message_s=values.get("per_message_s", 0.0),
        energy_j_per_byte=values.get("energy_j_per_byte", 0.0),
        sources=sources,
        paid_by=entry.paid_by or "link",
        band=UNTIMED,
    )
