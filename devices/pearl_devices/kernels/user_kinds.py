"""User-defined records of kinds: in a file of this package, or `module:NAME` in another module.

Only this module calls the functions of kinds of structure `own`. Every fault of a record is found
before a plan is made; the error names the module and the fault (docs/own_kernel.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import cast

import numpy as np

from pearl_devices import user_imports
from pearl_devices.base import Buffers, Call, KernelFailed, KernelKindError
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.record import LEFT_OUT, KernelKind, select_arrays
from pearl_devices.validation import explain_misfit, is_whole, quote

CALLED = "python"
"""The variant whose function computes one firing. Other functions return the call of a firing."""


def load(kind: str) -> KernelKind:
    """Return the record that `module:NAME` names.

    Raises:
        KernelKindError: there is none, or a field that does not depend on sizes is wrong.
    """
    module, _, name = kind.partition(":")
    try:
        home = user_imports.import_user_module(module)
    except ValueError as error:
        raise _wrong(kind, f"its module cannot be imported: {error}") from error
    found = getattr(home, name, None)
    if not isinstance(found, KernelKind):
        what = f"{name} is {quote(found)}" if hasattr(home, name) else f"it has no {name}"
        raise _wrong(kind, f"{what}; a pearl_devices.kernels.KernelKind is needed")
    if found.structure != "own":
        raise _wrong(kind, f"structure is {found.structure!r}; leave it out of your own kind")
    found = replace(found, name=kind)
    check_record(found)
    return found


def gather_records(
    package: str, families: Iterable[str]
) -> tuple[dict[str, KernelKind], list[str]]:
    """Return the records in these files of a package, by name, and a sentence for each bad file."""
    kinds: dict[str, KernelKind] = {}
    faults: list[str] = []
    for family in families:
        module = f"{package}.{family}"
        file = f"{module.replace('.', '/')}.py"
        try:
            found = [v for v in vars(import_module(module)).values() if isinstance(v, KernelKind)]
        except Exception as error:  # importing runs the file, which may raise anything
            faults.append(f"{file}: it cannot be imported: {_reason(error)}")
            continue
        if not found:
            faults.append(f"{file}: it has no KernelKind")
        if any(not kind.name for kind in found):
            faults.append(f"{file}: a KernelKind of it has no name; give it one")
        kinds |= {kind.name: kind for kind in found if kind.name}
    return kinds, faults


@cache
def check_record(kind: KernelKind) -> None:
    """Check the fields of a record that do not depend on sizes.

    Raises:
        KernelKindError: a field is wrong.
    """
    for field in ("writes", "sends", "per_copy", "per_group"):
        given = getattr(kind, field)
        if not isinstance(given, tuple) or not all(isinstance(each, str) for each in given):
            raise _wrong(
                kind.name, f"{field} is {quote(given)}; a tuple of names of arrays is needed"
            )
    if not kind.writes:
        raise _wrong(kind.name, "writes is empty; it must name the arrays that a firing writes")
    if not kind.variants:
        raise _wrong(
            kind.name, f"variants is empty; it needs one, such as {{{CALLED!r}: 'module:f'}}"
        )
    for variant, given in kind.variants.items():
        program = given.function
        if not isinstance(program, str) or not user_imports.CALLABLE.fullmatch(program):
            raise _wrong(
                kind.name, f"variant {variant} is {quote(program)}; it must be 'module:function'"
            )
        _look_up(kind.name, f"variant {variant}", program)
    judged = kind.in_evaluation
    if judged is None or judged == LEFT_OUT:
        return
    if not isinstance(judged, str) or not user_imports.CALLABLE.fullmatch(judged):
        needed = f"it must be 'module:function', LEFT_OUT ({LEFT_OUT!r}) or None"
        raise _wrong(kind.name, f"in_evaluation is {quote(judged)}; {needed}")
    _look_up(kind.name, "in_evaluation", judged)


def _look_up(kind: str, what: str, program: str) -> None:
    try:
        user_imports.import_function(program)
    except ValueError as error:
        raise _wrong(kind, f"{what}: {program}: {error}") from error


def check(kind: KernelKind, kernel: Kernel) -> None:
    """Check a record, the arrays of a kernel, and all names of arrays in the record.

    Raises:
        KernelKindError: the arrays are invalid, or a name in the record is no array of the kernel.
    """
    check_record(kind)
    try:
        arrays = kind.arrays(kernel)
        wrong = _misfits(arrays)
    except Exception as error:  # user-defined functions may raise anything
        raise _wrong(kind.name, f"arrays fails: {_reason(error)}") from error
    if wrong:
        raise _wrong(kind.name, f"arrays gives {wrong}")
    for field in ("writes", "sends", "per_copy", "per_group"):
        for pattern in getattr(kind, field):
            if not select_arrays(arrays, (pattern,)):
                what = f"{field} has {pattern!r}, which is none of its arrays {sorted(arrays)}"
                raise _wrong(kind.name, what)
    unwritten = sorted(set(kind.sent(kernel)) - set(kind.written(arrays)))
    if unwritten:
        raise _wrong(kind.name, f"it sends {unwritten} but does not write them; add them to writes")
    if kind.count is not None:
        try:
            found = kind.count(kernel)
            fits = len(found) == 4 and not any(explain_misfit(each) for each in found)
        except Exception as error:
            raise _wrong(kind.name, f"count fails: {_reason(error)}") from error
        if not fits:
            raise _wrong(
                kind.name,
                f"count gives {quote(found)}; it must give flops, bytes in, bytes out and resident "
                "bytes, each at least 0",
            )


def _misfits(arrays: object) -> str:
    """Why these are no valid arrays; empty if they are."""
    if not isinstance(arrays, Mapping) or not arrays:
        return f"{quote(arrays)}; it must be a dict from names to (shape, dtype)"
    for name, given in arrays.items():
        if not isinstance(name, str) or any(c in name for c in "@#"):
            return f"the name {quote(name)}; it must be text without @ and #"
        try:
            shape, dtype = given
            fits = isinstance(shape, tuple) and all(is_whole(n) and n >= 0 for n in shape)
            fits = fits and isinstance(dtype, str) and np.dtype(dtype).kind in "fiub"
        except (TypeError, ValueError):
            fits = False
        if not fits:
            needed = "it must be a tuple of whole numbers and a dtype such as 'float32'"
            return f"{quote(given)} for {name}; {needed}"
    return ""


def bind(kind: KernelKind, kernel: Kernel, variant: str, arrays: Buffers) -> Call:
    """Return the call of one firing over the arrays that the record names.

    Raises:
        KernelKindError: the function of the variant fails, or returns anything but a call.
    """
    program = kind.variants[variant].program(kernel)
    mine = {name: arrays[name] for name in kind.arrays(kernel)}
    try:
        function = user_imports.import_function(program)
        call = partial(function, kernel, mine) if variant == CALLED else function(kernel, mine)
    except Exception as error:  # user-defined functions may raise anything
        raise _wrong(kind.name, f"{program} cannot be bound: {_reason(error)}") from error
    if not callable(call):
        needed = "it must be a function without arguments that computes one firing"
        raise _wrong(kind.name, f"{program} returns {quote(call)}; {needed}")

    def fire() -> None:
        try:
            call()
        except Exception as error:
            text = f"kernel kind {kind.name}: {program} failed: {_reason(error)}"
            raise KernelFailed(text) from error

    return cast(Call, fire)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {user_imports.error_text(error)}"


def _wrong(kind: str, what: str) -> KernelKindError:
    return KernelKindError(f"kernel kind {kind}: {what}")
