"""Platform files: YAML in which every number has a unit and a source → `Platform`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, StrictStr, TypeAdapter
from pydantic.dataclasses import dataclass
from pydantic_core import ValidationError

from pearl.algorithms.options import STRICT
from pearl.spec.messages import Complaint, list_complaints
from pearl.spec.platform_entries import (
    HERE,
    LinkEntry,
    NamedDevice,
    device_of,
    link_of,
    this_cpu,
)
from pearl.spec.yaml_reader import Where, show
from pearl_devices import BACKENDS, Device, Link, Platform, discover
from pearl_devices.hosts import join_hosts


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HostEntry:
    """One host of a platform of several: a computer, its devices and the links between them."""

    devices: dict[str, NamedDevice] = Field(
        min_length=1,
        description="Name → device: its figures, its name in the catalogue, or here, the CPU of "
        "this machine.",
    )
    links: tuple[LinkEntry, ...] = Field(
        default=(), description="Every device needs a link to the host device."
    )


HostName = Annotated[StrictStr, Field(min_length=1, max_length=100)]
Name = Annotated[StrictStr | None, Field(min_length=1, max_length=100)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PlatformFile(HostEntry):
    """A machine: devices, the links between them, and which one is the host device."""

    name: Name = Field(default=None, description="The file's name by default.")
    host: StrictStr | None = Field(
        default=None, description="The device that is always on; the first by default."
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HostsFile:
    """Several machines and the network between them; a plan calls their devices host/device."""

    hosts: dict[HostName, HostEntry] = Field(
        min_length=1,
        description="Name → host, a computer with its devices. The first is home: a run starts "
        "there, and messages between two others pass it. The first device of each is its host "
        "device; home's is always on.",
    )
    links: tuple[LinkEntry, ...] = Field(
        default=(), description="Between hosts: every other host needs a link to the first."
    )
    name: Name = Field(default=None, description="The file's name by default.")


PLATFORM: TypeAdapter[PlatformFile] = TypeAdapter(PlatformFile)
HOSTS: TypeAdapter[HostsFile] = TypeAdapter(HostsFile)


def read_platform(
    data: Any, where: Where = (), default_name: str = "inline", *, imports: bool = True
) -> tuple[Platform | None, PlatformFile | HostsFile | None, list[Complaint]]:
    """Return the platform in plain data, or its problems; `where` is the path of keys to it.

    imports: whether device kinds by module path are imported; else their devices count as
        simulated, with a width without a unit.
    """
    several = isinstance(data, Mapping) and "hosts" in data
    entry: PlatformFile | HostsFile
    try:
        entry = HOSTS.validate_python(data) if several else PLATFORM.validate_python(data)
    except ValidationError as error:
        model = HostsFile if several else PlatformFile
        return None, None, list_complaints(error, data, where, model)
    hosts = entry.hosts if isinstance(entry, HostsFile) else {"": entry}
    ways = {host: (*where, "hosts", host) if host else where for host in hosts}
    problems: list[Complaint] = []
    here = [(host, name) for host, one in hosts.items() for name in one.devices if _here(one, name)]
    if len(here) > 1:
        named = ", ".join("/".join(filter(None, each)) for each in here)
        what = f"{named} are {HERE!r}; this machine's CPU is one device"
        problems.append(((*ways[here[1][0]], "devices", here[1][1]), what))
    name = entry.name or default_name
    always_on = entry.host if isinstance(entry, PlatformFile) else None
    machines: dict[str, Platform] = {}
    for host, one in hosts.items():
        devices = _devices(one, ways[host], problems, imports)
        links = _links(one.links, one.devices, ways[host], problems)
        if not problems:
            try:
                machines[host] = Platform(host or name, devices, links, always_on or "")
            except ValueError as error:
                problems.append((ways[host], str(error)))
    network = _links(entry.links, hosts, where, problems) if several else ()
    if problems or not several:
        return None if problems else machines[""], entry, problems
    try:
        return join_hosts(name, machines, network), entry, []
    except ValueError as error:
        return None, entry, [((*where, "links"), str(error))]


def _here(machine: HostEntry, name: str) -> bool:
    return machine.devices[name] is this_cpu()


def _devices(
    machine: HostEntry, where: Where, problems: list[Complaint], imports: bool
) -> tuple[Device, ...]:
    devices = []
    for name, device in machine.devices.items():
        if _here(machine, name):
            devices.append(replace(discover.cpu(), name=name))
            continue
        at = (*where, "devices", name)
        try:
            known = imports or device.kind in BACKENDS
            devices.append(device_of(name, device, at, problems, known))
        except ValueError as error:
            problems.append((at, str(error)))
    return tuple(devices)


def _links(
    entries: tuple[LinkEntry, ...], ends: Iterable[str], where: Where, problems: list[Complaint]
) -> tuple[Link, ...]:
    """Read the links between these ends: devices, or hosts."""
    links, known = [], list(ends)
    for i, link in enumerate(entries):
        at = (*where, "links", i)
        problems += [
            ((*at, "between"), f"given {show(end)}; allowed are {', '.join(known)}")
            for end in link.between
            if end not in known
        ]
        try:
            links.append(link_of(link))
        except ValueError as error:
            problems.append((at, str(error)))
    return tuple(links)


def unfold(entry: PlatformFile | HostsFile, name: str) -> dict[str, Any]:
    """Return the file as plain data, with a name, that `read_platform` can read."""
    written: dict[str, Any]
    if isinstance(entry, HostsFile):
        written = HOSTS.dump_python(entry, mode="json", exclude_none=True)
        hosts = [(one, written["hosts"][host]) for host, one in entry.hosts.items()]
    else:
        written = PLATFORM.dump_python(entry, mode="json", exclude_none=True)
        hosts = [(entry, written)]
    for machine, plain in hosts:
        plain["devices"] |= {name: HERE for name in machine.devices if _here(machine, name)}
    return {**written, "name": entry.name or name}
