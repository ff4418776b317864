"""Platform files: YAML in which every number has a unit and a source → `Platform`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, replace
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
from pydantic_core import PydanticKnownError, ValidationError

from pearl.algorithms.options import STRICT
from pearl.spec.catalogue import catalogue
from pearl.spec.messages import Complaint, allow, complaints, nearest
from pearl.spec.quantities import Figure, Number, Sourced
from pearl.spec.units import dimension_of
from pearl.spec.yaml_reader import Where, show
from pearl_devices import BACKENDS, Device, Link, Platform, backend, discover, estimator

MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
"""Module path of a device kind of the user's own."""

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
    model: StrictStr = Field(default="", max_length=200, description="What it is sold as.")
    source: StrictStr | None = Field(
        default=None,
        min_length=1,
        description="Where the numbers come from that name no source of their own.",
    )
    width: Count = Field(description="Cores of a CPU, SMs of a GPU, processing elements.")
    max_lanes: Count | None = Field(
        default=None, description="Serial executors side by side; 1 by default."
    )
    memory: Bytes | None = Field(default=None, description="Main memory, e.g. 24 GiB.")
    peak: FlopsPerSecond = Field(description="float32 peak of the whole device, e.g. 60 TFLOP/s.")
    memory_bandwidth: BytesPerSecond = Field(description="Of its main memory, e.g. 936 GB/s.")
    overhead: Seconds = Field(description="Cost of starting one kernel, e.g. 5 us.")
    idle_power: Watts = Field(description="The whole device doing nothing, e.g. 20 W.")
    active_power: Watts = Field(description="The whole device fully busy, e.g. 350 W.")
    when_unused: Literal["idle", "off"] | None = Field(
        default=None,
        description="Its draw when a plan leaves it out; off for simulated devices, else idle.",
    )
    simulated: StrictBool | None = Field(
        default=None, description="No such hardware is driven; as its kind says by default."
    )
    figures: dict[str, Annotated[Any, Figure()]] = Field(
        default_factory=dict,
        description="Further numbers; the name's end says the unit (clock_hz: 250 MHz), no unit "
        "is a count.",
    )


HERE = "here"
"""In a device's place: the CPU of this machine, as `pearl_devices.discover` finds it."""


def _described(given: Any) -> Any:
    """A device of the catalogue where only its name is given. HERE is checked as any of them, and
    not read."""
    if not isinstance(given, str):
        return given
    known = catalogue()
    if given == HERE:
        return next(iter(known.values()))
    if given not in known:
        names = ", ".join(known)
        raise ValueError(
            f"a mapping, {HERE!r} (the CPU of this machine), or a device of the catalogue"
            f"{nearest(given, known)}: {names}"
        )
    return known[given]


NamedDevice = Annotated[
    DeviceEntry, BeforeValidator(_described, json_schema_input_type=DeviceEntry | str)
]

Ends = Annotated[tuple[StrictStr, ...], Field(min_length=2, max_length=2)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LinkEntry:
    """One link of a platform file."""

    between: Ends = Field(description="The two devices it joins, e.g. [cpu, gpu].")
    source: StrictStr | None = Field(
        default=None,
        min_length=1,
        description="Where the numbers come from that name no source of their own.",
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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PlatformFile:
    """A machine: devices, the links between them, and which one is the host."""

    devices: dict[str, NamedDevice] = Field(
        min_length=1,
        description="Name → device: its figures, its name in the catalogue, or here, the CPU of "
        "this machine.",
    )
    name: StrictStr | None = Field(
        default=None, min_length=1, max_length=100, description="The file's name by default."
    )
    host: StrictStr | None = Field(
        default=None, description="The device that is always on; the first by default."
    )
    links: tuple[LinkEntry, ...] = Field(
        default=(), description="Every device needs a link to the host."
    )


PLATFORM: TypeAdapter[PlatformFile] = TypeAdapter(PlatformFile)


def read_platform(
    data: Any, where: Where = (), default_name: str = "inline", *, imports: bool = True
) -> tuple[Platform | None, PlatformFile | None, list[Complaint]]:
    """The platform in plain data, or the problems with it; `where` is the way to it.

    imports: whether device kinds by module path are imported; else their devices count as simulated
    ones whose width has no unit.
    """
    try:
        entry = PLATFORM.validate_python(data)
    except ValidationError as error:
        return None, None, complaints(error, data, where, PlatformFile)
    problems: list[Complaint] = []
    devices = []
    here = [name for name, given in data["devices"].items() if given == HERE]
    if len(here) > 1:
        several = f"{', '.join(here)} are {HERE!r}; this machine's CPU is one device"
        problems.append(((*where, "devices", here[1]), several))
    for name, device in entry.devices.items():
        if name in here:
            devices.append(replace(discover.cpu(), name=name))
            continue
        try:
            known = imports or device.kind in BACKENDS
            devices.append(_device(name, device, (*where, "devices", name), problems, known))
        except ValueError as error:
            problems.append(((*where, "devices", name), str(error)))
    links = []
    for i, link in enumerate(entry.links):
        at = (*where, "links", i)
        unknown = [end for end in link.between if end not in entry.devices]
        problems += [
            ((*at, "between"), f"given {show(end)}; allowed are {', '.join(entry.devices)}")
            for end in unknown
        ]
        try:
            links.append(_link(link, at, problems))
        except ValueError as error:
            problems.append((at, str(error)))
    if problems:
        return None, entry, problems
    try:
        platform = Platform(
            entry.name or default_name, tuple(devices), tuple(links), entry.host or ""
        )
    except ValueError as error:
        return None, entry, [(where, str(error))]
    return platform, entry, []


def _numbers(
    entry: DeviceEntry | LinkEntry, at: Where, problems: list[Complaint]
) -> dict[str, Sourced]:
    """The numbers of an entry, each with the source that counts; one without is a problem."""
    found = {f.name: getattr(entry, f.name) for f in fields(entry)}
    numbers = {key: value for key, value in found.items() if isinstance(value, Sourced)}
    return _with_sources(numbers, entry.source, at, problems)


def _with_sources(
    numbers: Mapping[str, Sourced], source: str | None, at: Where, problems: list[Complaint]
) -> dict[str, Sourced]:
    for key, number in numbers.items():
        if number.source is None and source is None:
            hint = "write {value: …, source: …}, or give the entry a source"
            problems.append(((*at, key), f"the number has no source; {hint}"))
    return {key: Sourced(n.value, n.source or source) for key, n in numbers.items()}


def _figures(entry: DeviceEntry, at: Where, problems: list[Complaint]) -> dict[str, Sourced]:
    read: dict[str, Sourced] = {}
    for key, given in entry.figures.items():
        try:
            read[key] = Number(dimension_of(key), zero=True).read(given)
        except ValueError as error:
            inner = given.get("value", given) if isinstance(given, Mapping) else given
            problems.append(((*at, "figures", key), f"given {show(inner)}; {allow(error)}"))
    return _with_sources(read, entry.source, (*at, "figures"), problems)


def _device(
    name: str, entry: DeviceEntry, at: Where, problems: list[Complaint], known: bool
) -> Device:
    numbers = _numbers(entry, at, problems)
    figures = _figures(entry, at, problems)
    kind = backend(entry.kind) if known else None
    if kind is not None:
        estimator(entry.kind)
    simulated = entry.simulated
    if simulated is None:
        simulated = kind is None or kind.SIMULATED
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
        when_unused=entry.when_unused or ("off" if simulated else "idle"),
        simulated=simulated,
        model=entry.model,
        figures={key: number.value for key, number in figures.items()},
        sources=sources,
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
}
LINK_FIELDS = {
    "latency": "latency_s",
    "bandwidth": "bytes_per_s",
    "per_message": "per_message_s",
    "energy": "energy_j_per_byte",
}
"""Key in a platform file → field of `Device` or `Link`."""


def _link(entry: LinkEntry, at: Where, problems: list[Complaint]) -> Link:
    numbers = {LINK_FIELDS[key]: n for key, n in _numbers(entry, at, problems).items()}
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
    )


def unfold(entry: PlatformFile, name: str) -> dict[str, Any]:
    """The file as plain data that `read_platform` reads back, named."""
    written: dict[str, Any] = PLATFORM.dump_python(entry, mode="json", exclude_none=True)
    return {**written, "name": entry.name or name}
