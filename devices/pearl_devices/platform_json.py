"""A platform as plain data for other processes and for run files, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pearl_devices.base import Device, Link, Platform


def to_json(platform: Platform) -> dict[str, Any]:
    """Return JSON values from which `from_json` makes an equal platform."""
    return {
        "name": platform.name,
        "host": platform.host,
        "devices": [plain(device) for device in platform.devices],
        "links": [plain(link) for link in platform.links],
    }


def plain(noun: Device | Link) -> dict[str, Any]:
    """Return the fields of a device or a link. Infinite sizes and None are omitted: JSON has no
    infinity, and both are defaults."""
    about = {f.name: getattr(noun, f.name) for f in fields(noun)}
    return {
        k: dict(v) if isinstance(v, Mapping) else v
        for k, v in about.items()
        if v is not None and v != math.inf
    }


def from_json(about: Mapping[str, Any]) -> Platform:
    """Return the platform that `to_json` wrote."""
    return Platform(
        about["name"],
        tuple(Device(**device) for device in about["devices"]),
        tuple(Link(**link) for link in about["links"]),
        about["host"],
    )
