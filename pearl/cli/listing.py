"""Names that a spec may use: algorithms, platforms, devices and their kinds, methods, policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from pearl.errors import SpecError
from pearl_devices import ABSENT_KINDS, BACKENDS, Device, Platform, backend, estimator, offers

Entry = dict[str, str]
"""name and summary."""


def _first_paragraph(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    paragraph = " ".join((text or "").split("\n\n")[0].split())
    return paragraph.removesuffix(".")


def algorithms() -> list[Entry]:
    """List every algorithm with the first paragraph of its documentation."""
    from pearl.algorithms import ALGORITHMS, algorithm

    return [
        {"name": name, "summary": _first_paragraph(algorithm(name).summary)} for name in ALGORITHMS
    ]


def methods() -> list[Entry]:
    """List every method that `solve` knows."""
    from pearl.solvers import METHODS

    modules = {name: method.load(name).__module__ for name, method in METHODS.items()}
    return [
        {"name": name, "summary": _first_paragraph(import_module(module).__doc__)}
        for name, module in modules.items()
    ]


def policies() -> list[Entry]:
    """List every distribution policy, and where it runs each part of the loop."""
    from pearl.spec.distribution import DISTRIBUTIONS

    return [{"name": n, "summary": policy.summary} for n, policy in DISTRIBUTIONS.items()]


def machines() -> dict[str, Platform]:
    """Return the platforms a spec may name: `host` (this machine) and those that ship; without
    those whose kinds of devices are left out of this installation.

    Raises:
        ValueError: a shipped platform file cannot be read.
    """
    from pearl.spec.platform_files import read_platform
    from pearl.spec.reading import read_shipped
    from pearl.spec.yaml_reader import parse
    from pearl_devices.discover import host

    by_name = {"host": host()}
    for name, text in sorted(read_shipped("pearl_configs.platforms").items()):
        platform, _, problems = read_platform(parse(text.encode(), name).data, default_name=name)
        if platform is not None:
            by_name[name] = platform
        elif not ABSENT_KINDS:
            raise ValueError(f"shipped platform {name} cannot be read: {problems}")
    return by_name


def platforms() -> list[Entry]:
    """List every platform with its devices."""
    return [
        {"name": name, "summary": "; ".join(f"{d.name}: {_device(d)}" for d in platform.devices)}
        for name, platform in machines().items()
    ]


def devices() -> list[Entry]:
    """List every device of every platform, as `platform/device`, then those of the catalogue.

    Raises:
        SpecError: as for `kinds`, because a platform may use any kind.
    """
    kinds()
    from pearl.spec.catalogue import catalogue
    from pearl.spec.platform_files import read_platform

    entries = [
        {"name": f"{name}/{d.name}", "summary": _device(d)}
        for name, platform in machines().items()
        for d in platform.devices
    ]
    for name in catalogue():
        platform, _, problems = read_platform({"devices": {name: name}})
        if platform is not None:
            entries.append({"name": name, "summary": _device(platform.devices[0])})
        elif not ABSENT_KINDS:
            raise ValueError(f"device {name} of the catalogue cannot be read: {problems}")
    return entries


def kinds() -> list[Entry]:
    """List every device kind, with the first paragraph of its file and the unit of its width."""
    entries = []
    for name in BACKENDS:
        try:
            kind, _ = backend(name), estimator(name)
        except ValueError as error:
            raise SpecError(str(error)) from None
        traits = f"width in {kind.WIDTH_UNIT}" + (", simulated" if kind.SIMULATED else "")
        entries.append({"name": name, "summary": f"{_first_paragraph(kind.__doc__)} ({traits})"})
    return entries


def runnable(device: Device) -> dict[str, list[str]]:
    """Map kinds of kernels that a device can run to their variants there, for kernels of small
    sizes.
    """
    from pearl_estimators.host.benchmark_kernels import MOST_FLOPS, MOST_STEPS
    from pearl_estimators.host.random_kernels import DRAWS, draw_kernels

    variants_of: dict[str, dict[str, None]] = {}
    for name, (_, kind, _) in DRAWS.items():
        _, kernel = next(draw_kernels([name], 0, most_flops=MOST_FLOPS, most_steps=MOST_STEPS))
        for variant, _ in offers(kernel, device):
            variants_of.setdefault(kind.name, {})[variant] = None
    return {kind: list(variants) for kind, variants in variants_of.items()}


def _device(device: Device) -> str:
    traits = f"{device.kind}, {device.width} {device.width_unit}"
    if device.simulated:
        traits += ", simulated"
    if device.design:
        traits += f", design {device.design}"
    return f"{device.model} ({traits})" if device.model else traits


LISTS: Mapping[str, Callable[[], list[Entry]]] = {
    "algorithms": algorithms,
    "platforms": platforms,
    "devices": devices,
    "kinds": kinds,
    "methods": methods,
    "policies": policies,
}
"""Argument of `pearl list` → the function that lists."""
