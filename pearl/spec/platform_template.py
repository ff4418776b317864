"""`platform_text`: a platform file written from the catalogue, for editing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from pearl.errors import SpecError
from pearl.spec.catalogue import catalogue, read_lines
from pearl.spec.messages import suggest_nearest
from pearl.spec.platform_entries import HERE
from pearl.spec.yaml_reader import parse, show
from pearl_devices import BACKENDS

LINKED = "cpu_gpu_fpga.yaml"
"""The shipped platform whose links are the usual ones between the kinds of its devices."""

NAME = re.compile(r"[A-Za-z_]\w*")
COUNT = re.compile(r"(.+)x([1-9]\d?)")
FORM = "write NAME=DEVICE, …, the host's CPU first, such as cpu=ryzen_9_7950x,gpu=rtx_4090x2"


def platform_text(given: str) -> str:
    """Write a platform file for text such as `cpu=ryzen_9_7950x,gpu=rtx_4090x2`.

    The file holds every number of the devices and of the usual links, with their sources.

    Raises:
        SpecError: the text has another form, or names a device that is not in the catalogue.
    """
    devices = dict(_devices(given))
    host = next(iter(devices))
    of_hosts = next(iter(BACKENDS))  # the kind of every host device
    kinds = {
        name: of_hosts if of == HERE else catalogue()[of]["kind"] for name, of in devices.items()
    }
    if kinds[host] != of_hosts:
        raise SpecError(f"--platform: {host} is a {kinds[host]}; the first is the host: {FORM}")
    lines = ["name: mine", "devices:"]
    for name, of in devices.items():
        if of == HERE:
            lines.append(f"  {name}: {HERE}")
        else:
            lines += [f"  {name}:", *(f"  {line}" for line in read_lines(of))]
    links = [
        f"  - {{between: [{host}, {name}], {_link(name, kinds[name])}}}"
        for name, of in devices.items()
        if name != host and not catalogue()[of].get("unified_memory")
    ]
    return "\n".join([*lines, *(["links:", *links] if links else []), ""])


def _devices(given: str) -> Iterator[tuple[str, str]]:
    """Names and devices of the catalogue; several of one name are numbered from 0."""
    seen: set[str] = set()
    for part in given.split(","):
        name, equals, of = (each.strip() for each in part.partition("="))
        if not equals or not NAME.fullmatch(name):
            raise SpecError(f"--platform: given {show(part)}; {FORM}")
        many = COUNT.fullmatch(of)
        count = 1
        if of not in catalogue() and many:
            of, count = many[1], int(many[2])
        if of not in catalogue() and of != HERE:
            names = ", ".join(catalogue())
            raise SpecError(
                f"--platform: no device {show(of)} in the catalogue"
                f"{suggest_nearest(of, catalogue())}; "
                f"allowed are {HERE} (the CPU of this machine), {names}"
            )
        for n in range(count):
            each = f"{name}{n}" if count > 1 else name
            if each in seen:
                raise SpecError(f"--platform: {each} is named twice; names are each once")
            seen.add(each)
            yield each, of


def _link(name: str, kind: str) -> str:
    """The usual link of a device of this kind to the host, as a flow mapping without braces."""
    text = (files("pearl_configs.platforms") / LINKED).read_bytes()
    shipped: Mapping[str, Any] = parse(text, LINKED).data
    for link in shipped["links"]:
        other = shipped["devices"][link["between"][1]]
        if catalogue()[other]["kind"] == kind:
            numbers = ((key, value) for key, value in link.items() if key != "between")
            return ", ".join(
                f"{key}: {{value: {n['value']}, source: {json.dumps(n['source'])}}}"
                for key, n in numbers
            )
    raise SpecError(f"--platform: {name} is a second {kind}; a platform has the host's CPU alone")
