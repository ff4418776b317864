"""Devices that a platform may name instead of describing them: `gpu: a100_sxm_40gb`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from pearl.spec.yaml_reader import parse

FOLDER = "pearl_configs.devices"


@cache
def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """Name → device, as it would stand in a platform file."""
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
