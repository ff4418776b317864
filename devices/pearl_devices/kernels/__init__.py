"""Kinds of kernels: one record each (`record.KernelKind`), one file per family.

A kind that `KINDS` lacks is `inference.NAME` or `update.NAME` of a user-defined algorithm, or
`module:NAME`, a record in a user-defined module.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pearl_devices.base import KernelKindError
from pearl_devices.kernel import Arg, Dim, Kernel, Module
from pearl_devices.kernels import off_policy, on_policy, user_kinds
from pearl_devices.kernels.record import (
    LEFT_OUT,
    KernelKind,
    Parts,
    Passes,
    Product,
    Structure,
    Variant,
)

FAMILIES = (
    "environments",
    "evaluation",
    "replay",
    "param_sync",
    "dqn",
    "ddpg",
    "td3",
    "sac",
    "on_policy",
    "data_parallel",
    "rollouts",
    "tabular",
    "offline",
)
"""Files of this package with records. A new kind is one file and its name here."""

KINDS, FAULTS = user_kinds.gather_records(__name__, FAMILIES)
"""Name → record; and a sentence for each file without valid records."""

UNKNOWN = KernelKind(arrays=lambda k: {}, name="unknown", structure="unknown")
"""The record of an unknown kind: it has no arrays and no variants."""


def kind_of(kernel: Kernel) -> KernelKind:
    """Return the record of a kernel's kind; UNKNOWN if there is none.

    Raises:
        KernelKindError: the kind names a user-defined record that is missing or incomplete.
    """
    return KINDS.get(kernel.kind) or _own(kernel.kind, "horizon" in kernel.dims) or UNKNOWN


@cache
def _own(kind: str, rollout: bool) -> KernelKind | None:
    """The record of a user-defined kind, or of a kind of a user-defined algorithm, which learns
    from a replay or, with `rollout`, from a rollout."""
    if ":" in kind:
        return user_kinds.load(kind)
    family, _, name = kind.partition(".")
    if name and family == "inference":
        return off_policy.inference(name, native=False)
    if name and family == "update":
        return on_policy.update(name) if rollout else off_policy.update(name)
    return None


def kernel(
    kind: str,
    sizes: Mapping[str, Dim] | None = None,
    /,
    *,
    program: str | None = None,
    args: Mapping[str, Arg] | None = None,
    modules: Mapping[str, Module] | None = None,
    interface: tuple[Kernel, ...] = (),
    **dims: Dim,
) -> Kernel:
    """Return a `Kernel` of `kind` with its work counted. Its sizes are `sizes` and `dims` together,
    as the module of its record names them.

    Raises:
        KeyError: no such kind; the text names all.
        KernelKindError: `kind` names a user-defined record that is missing or incomplete, or a file
            of `FAMILIES` does.
    """
    if FAULTS:
        raise KernelKindError("; ".join(FAULTS))
    dims = {**(sizes or {}), **dims}
    found = KINDS.get(kind) or _own(kind, "horizon" in dims)
    if found is None:
        raise KeyError(
            f"no kernel kind {kind!r}; there are {sorted(KINDS)}, inference.NAME and update.NAME "
            "of any algorithm, and module:NAME for a custom record"
        )
    if found.structure == "own":
        user_kinds.check(found, Kernel(kind, dims, program=program, args=args or {}))
    return found.kernel(dims, program=program, args=args, modules=modules, interface=interface)


def parts(kernel: Kernel) -> Parts:
    """Return the kernels that a fused kernel runs in one call, each with its firings; else
    nothing."""
    return kind_of(kernel).parts(kernel)


def acts(kernel: Kernel) -> bool:
    """Whether a kernel steps environments, alone or in a fused call."""
    kind = kind_of(kernel)
    return kind.structure == "environment" or any(acts(part) for part, _ in kind.parts(kernel))


def repeats(kernel: Kernel) -> bool:
    """Whether one call can run many firings (`loop.more`)."""
    return "loop.more" in kind_of(kernel).arrays(kernel)


__all__ = [
    "KINDS",
    "LEFT_OUT",
    "KernelKind",
    "Parts",
    "Passes",
    "Product",
    "Structure",
    "Variant",
    "acts",
    "kernel",
    "kind_of",
    "parts",
    "repeats",
]
