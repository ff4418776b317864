"""Devices, and how kernels run on them. Imports nothing of `pearl` or `pearl_estimators`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, cast

from pearl_devices.base import (
    Buffers,
    Call,
    Device,
    DeviceKindError,
    FigureError,
    KernelKindError,
    Link,
    Platform,
    UnsupportedError,
)
from pearl_devices.device_kind import Backend, FiringCost, Refused
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kernel
from pearl_devices.rooms import has_room
from pearl_devices.user_imports import CALLABLE, error_text, import_function, refuse_standard
from pearl_devices.validation import is_whole, quote

BACKENDS = {
    "cpu": "pearl_devices.cpu",
    "gpu": "pearl_devices.gpu",
    "fpga": "pearl_devices.fpga",
    "pim": "pearl_devices.pim",
    "null": "pearl_devices.null",
}
"""Device kind → the module that is its `Backend`. A new kind is one file and one line here.
A user-defined kind needs no line: a spec names its module path, such as my_package.npu."""

ABSENT_KINDS = {kind: BACKENDS.pop(kind) for kind in list(BACKENDS) if not has_room(BACKENDS[kind])}
"""The kinds that this installation leaves out, with their modules: some of gpu, fpga and pim."""

NEEDED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "offers": (
        callable,
        "def offers(kernel, device), the (variant, width) pairs that it can run, or Refused(why)",
    ),
    "bind": (callable, "def bind(kernel, variant, buffers), a call that computes one firing"),
    "WIDTH_UNIT": (
        lambda given: isinstance(given, str) and given.isidentifier(),
        "one word for the unit that a device's width counts, such as 'cores'",
    ),
    "SIMULATED": (
        lambda given: isinstance(given, bool),
        "True if no such hardware is driven, else False",
    ),
    "ESTIMATE": (
        lambda given: (
            callable(given) or (isinstance(given, str) and CALLABLE.fullmatch(given) is not None)
        ),
        "a function (kernel, device, variant, width) that returns what a firing costs, or the name "
        "of one as 'module:function', such as 'pearl_estimators.cpu_datasheet:cpu_datasheet'",
    ),
}
"""Name that the file of a device kind must define → a test of its value, and the value needed."""


_trusted: set[str] = set()
"""Kinds by module path that may be imported."""


def trust_kind(kind: str) -> None:
    """Allow the import of a device kind by module path: the user has named it, such as in a spec.
    A kind that a file of a run names is not trusted by that."""
    _trusted.add(kind)


def knows_kind(kind: str) -> bool:
    """Return whether `backend` resolves a kind: it is in `BACKENDS`, or `trust_kind` allows it."""
    return kind in BACKENDS or kind in _trusted


def backend(kind: str) -> Backend:
    """Return the backend of a device kind; import it on first use.

    kind: a key of `BACKENDS`, or a module path that `trust_kind` allows, which has a dot.

    Raises:
        KeyError: no such kind; the text names all.
        DeviceKindError: it is not trusted, or its file is missing, cannot be imported or lacks a
            name of `NEEDED`.
    """
    if kind not in BACKENDS and "." not in kind:
        raise KeyError(f"no device kind {kind!r}; there are {sorted(BACKENDS)}")
    if not knows_kind(kind):
        raise DeviceKindError(
            f"{_file(kind)}: no spec that you named has it, so it is not imported; load a spec "
            "with this kind first, or allow it: pearl_devices.trust_kind"
        )
    return _backend(kind, BACKENDS.get(kind, kind))


@cache
def _backend(kind: str, module: str) -> Backend:
    try:
        refuse_standard(module)
        found = import_module(module)
    except (Exception, SystemExit) as error:  # importing runs the file, which may raise anything
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{module}.".startswith(f"{absent}."):
            needed = ", ".join(NEEDED)
            why = f"there is no such file on Python's path; write one that defines {needed}"
        else:
            why = f"it cannot be imported: {type(error).__name__}: {error_text(error)}"
        raise DeviceKindError(f"{_file(kind, module)}: {why}") from error
    for name, (fits, needed) in NEEDED.items():
        if not hasattr(found, name):
            raise DeviceKindError(f"{_file(kind, module)}: it has no {name}; it needs {needed}")
        if not fits(getattr(found, name)):
            given = quote(getattr(found, name))
            raise DeviceKindError(f"{_file(kind, module)}: {name} is {given}; it must be {needed}")
    return cast(Backend, found)


def _file(kind: str, module: str = "") -> str:
    """A device kind and its file, for error texts."""
    return f"device kind {kind!r}, {(module or BACKENDS.get(kind, kind)).replace('.', '/')}.py"


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Return the ways that `device` can run `kernel`, (variant, width) pairs; `Refused` if none.

    Raises:
        DeviceKindError: the kind's `offers` fails or returns anything else.
    """
    kind = backend(device.kind)
    try:
        given = kind.offers(kernel, device)
        found = tuple((variant, width) for variant, width in given)
        fits = all(isinstance(v, str) and is_whole(w) and 1 <= w <= device.width for v, w in found)
    except (FigureError, KernelKindError):
        raise
    except Exception as error:
        raise kind_failure("offers", kernel, device, error) from error
    if not fits or len(set(found)) < len(found):
        raise DeviceKindError(
            f"{_file(device.kind)}: offers gives {quote(found)} for kernel {kernel.kind} on "
            f"{device.name!r}; it must give pairs of a variant and a whole number from 1 to "
            f"{device.width}, each pair once"
        )
    if found:
        return found
    return given if isinstance(given, Refused) else Refused("its device kind gives no reason")


def estimator(kind: str) -> Callable[[Kernel, Device, str, int], Any]:
    """Return the function that is the `ESTIMATE` of a device kind.

    Raises:
        DeviceKindError: ESTIMATE names a `module:function` that cannot be imported.
    """
    given = backend(kind).ESTIMATE
    if callable(given):
        return given
    try:
        return import_function(given)
    except ValueError as error:
        raise DeviceKindError(f"{_file(kind)}: ESTIMATE is {given!r}: {error}") from error


def arrays_on_host(kernel: Kernel, kind: str, variant: str) -> tuple[str, ...]:
    """Return the arrays that a variant of a device kind keeps in the host's memory; none of a kind
    that is not known here, because nothing is imported to find out."""
    ask = getattr(backend(kind), "on_host", None) if knows_kind(kind) else None
    return tuple(ask(kernel, variant)) if ask else ()


def kind_failure(name: str, kernel: Kernel, device: Device, error: object) -> DeviceKindError:
    """Return the error that says why function `name` of a device kind failed for `kernel`.

    error: the exception that the function raised, or a text that says why its result is wrong.
    """
    if isinstance(error, Exception):
        error = f"{type(error).__name__}: {error_text(error)}"
    return DeviceKindError(
        f"{_file(device.kind)}: {name} fails for kernel {kernel.kind} on {device.name!r}: {error}"
    )


__all__ = [
    "BACKENDS",
    "Backend",
    "Buffers",
    "Call",
    "Device",
    "DeviceKindError",
    "FigureError",
    "FiringCost",
    "Kernel",
    "Link",
    "Platform",
    "Refused",
    "UnsupportedError",
    "arrays_on_host",
    "backend",
    "estimator",
    "kernel",
    "knows_kind",
    "offers",
    "trust_kind",
]
