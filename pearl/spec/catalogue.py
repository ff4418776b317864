"""Devices that a platform may name instead of describing them: `gpu: a100_sxm_40gb`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from pearl.spec.yaml_reader import parse

FOLDER = "pearl_configs.devices"


@cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Return the devices of the catalogue: name → device, as a platform file writes it.

    Raises:
        ValueError: a file of the catalogue is wrong, or defines a name of another file.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for file in sorted(files(FOLDER).iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".yaml"):
            continue
        document = parse(file.read_bytes(), file.name)
        repeated = sorted(set(document.data) & set(found))
        if document.problems or repeated:
            raise ValueError(f"{file.name}: {document.problems or f'also elsewhere: {repeated}'}")
        found |= document.data
    return MappingProxyType(found)


def read_lines(name: str) -> list[str]:
    """Return the lines below a device's name in its file, with comments and sources.

    Raises:
        KeyError: the catalogue has no such device.
    """
    for file in files(FOLDER).iterdir():
        if file.name.endswith(".yaml"):
            found = re.search(rf"^{name}:\n((?:[ ].*\n)+)", file.read_text("utf-8"), re.MULTILINE)
            if found:
                return found[1].splitlines()
    raise KeyError(name)
