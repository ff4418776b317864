"""A platform as plain data for other processes, and back, whatever its origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pearl_devices.base import Device, Link, Platform


def to_json(platform: Platform) -> dict[str, Any]:
    """Return plain data from which `from_json` makes an equal platform. Infinite numbers stay
    infinite."""
    return {
        "name": platform.name,
        "host": platform.host,
        "devices": [plain(device) for device in platform.devices],
        "links": [plain(link) for link in platform.links],
    }


def plain(noun: Device | Link) -> dict[str, Any]:
    """The fields of a device or a link."""
    about = {f.name: getattr(noun, f.name) for f in fields(noun)}
    return {k: dict(v) if isinstance(v, Mapping) else v for k, v in about.items()}


def from_json(about: Mapping[str, Any]) -> Platform:
    """Return the platform that `to_json` wrote."""
    return Platform(
        about["name"],
        tuple(Device(**device) for device in about["devices"]),
        tuple(Link(**link) for link in about["links"]),
        about["host"],
    )
