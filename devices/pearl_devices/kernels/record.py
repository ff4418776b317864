"""`KernelKind`: the record of a kind, which planner, runtime, estimators and backends read.

A new kind is one record in one file of `pearl_devices.kernels`, which `FAMILIES` lists. A spec
names a user-defined record by its module path (`docs/own_kernel.md`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from pearl_devices.kernel import Arg, Dim, Kernel, Module

Work = tuple[float, float, float, float]
"""Flops, bytes in, bytes out, resident scratch bytes of one firing."""

Spec = tuple[tuple[int, ...], str]
"""Shape and numpy dtype name of an array."""

Product = tuple[int, int, int]
"""A matrix product: rows m, inner size k, columns n; 2·m·k·n flops."""

Parts = tuple[tuple[Kernel, int], ...]
"""Kernels that a fused kernel runs in one call, each with its firings."""

Structure = Literal[
    "environment",  # steps environments
    "network",  # a forward pass that chooses actions
    "gradient",  # gradient steps on networks
    "insert",  # stores transitions in a ring, with a sum tree if it is prioritised
    "sample",  # draws batches from that ring
    "prioritise",  # writes priorities into the sum tree
    "store",  # stores a vector step in a rollout
    "advantages",  # values a rollout: a forward pass, then a trace backwards in time
    "table",  # reads or writes entries of a table
    "sweep",  # goes over a log of transitions, a table for each chunk of it
    "average",  # averages tables and hands the mean back to each
    "copy",  # copies parameters
    "evaluation",  # plays greedy episodes
    "fused",  # several kinds in one call
    "shared",  # a part of gradient steps that several learners take together
    "own",  # anything else: its estimate is a timing
    "unknown",  # no kind
]
"""Structures of kernels. Devices, estimators and the runtime read these, never a kind's name."""


LEFT_OUT = "left out"
"""Value of `KernelKind.in_evaluation` if the kernel is no part of the policy and fires in training
alone."""

Networks = Callable[[Any, int, int, int, tuple[int, ...]], dict[str, Dim]]
"""(generator, observation components, action components, policy outputs, hidden widths) → networks
and further sizes of an algorithm in a random kernel."""


@dataclass(frozen=True)
class Passes:
    """Average number of times that one gradient step runs one network.

    forward: passes of a batch.
    backward: passes to its weights.
    through: passes to its input, not its weights, as when an actor learns through a critic.
    adam: steps of the optimiser.
    follow: updates of its target.
    target: whether it has a target.
    """

    forward: float
    backward: float
    through: float = 0.0
    adam: float = 1.0
    follow: float = 1.0
    target: bool = True


def always(kernel: Kernel) -> bool:
    """Return True: the variant fits every kernel."""
    return True


def nowhere(name: str) -> bool:
    """Return False: a kind keeps no array in the host's memory."""
    return False


def _whole(kernel: Kernel) -> Mapping[str, tuple[int, int, int]]:
    return {}


def once(kernel: Kernel) -> float:
    """Return 1 for every kernel."""
    return 1.0


@dataclass(frozen=True)
class Variant:
    """One implementation of a kind.

    function: `module:function`, imported when a kernel is bound, or a function that returns this
        name for a kernel. The named function takes the kernel and its arrays by name, and returns
        the call of one firing.
    cores: number of cores that it takes.
    fits: whether it can run a kernel of the kind.
    on_host: array name → whether the array stays in the host's memory, for variants that also run
        on device tensors. Such arrays are counters and constants, or rows that kernels read there.
    """

    function: str | Callable[[Kernel], str]
    cores: int = 1
    fits: Callable[[Kernel], bool] = always
    on_host: Callable[[str], bool] = nowhere

    def program(self, kernel: Kernel) -> str:
        """Return the `module:function` for this kernel."""
        return self.function if isinstance(self.function, str) else self.function(kernel)


def primitive(
    where: str,
    cores: int = 1,
    fits: Callable[[Kernel], bool] = always,
    on_host: Callable[[str], bool] = nowhere,
) -> Variant:
    """Return a variant whose `module:function` lies in `pearl_devices.primitives`."""
    return Variant(f"pearl_devices.primitives.{where}", cores, fits, on_host)


def size_bytes(spec: Spec) -> int:
    """Return the bytes of an array."""
    return math.prod(spec[0]) * np.dtype(spec[1]).itemsize


def none(kernel: Kernel) -> tuple[()]:
    return ()


def _no_passes(kernel: Kernel) -> Mapping[str, Passes]:
    return {}


def _rounds(kernel: Kernel) -> float:
    return float(kernel.dim("steps")) if "steps" in kernel.dims else 1.0


def _nothing(kernel: Kernel) -> float:
    return 0.0


@dataclass(frozen=True)
class KernelKind:
    """A kind of kernel. A user-defined kind needs `arrays`, `writes` and `variants` only.

    arrays: kernel → name → (shape, dtype) of every array that a firing reads or writes.
    writes: the arrays that it writes, by name or by a prefix that ends in a dot.
    variants: name → implementation on a CPU, preferred first; other device kinds have tables of
        their own. A `module:function` is enough. The
        variant `python` is called in every firing, with the kernel and its arrays by name.
    name: the value of `Kernel.kind`, `family` or `family.algorithm`; given for user-defined kinds.
    structure: what it computes, one of STRUCTURES.
    count: kernel → flops, bytes and scratch of one firing; None: no flops, the bytes of its arrays.
    in_evaluation: for a kernel between environments and network, which writes env.obs or
        act.action: the `module:function` that only changes these rows in evaluation and in a
        policy, called as a variant `python` is, or LEFT_OUT. None for other kernels.
    sends: arrays among `writes` that other tasks read as a message, in slots; the others are state.
    per_copy: arrays that each copy of a split task has separately.
    per_group: arrays that each group of environments has separately.
    repeatable: an interrupted firing can be repeated from its inputs.
    policy: for a kernel that writes the policy of a loop that does not act: kernel → the kernel
        that acts in evaluation. None for other kernels.
    side: `acts` or `learns` if it belongs to one side of the loop and can be timed in parallel with
        the other side; else empty.
    stochastic: it draws random numbers, other than to explore.
    parts: for a fused kind, the kernels that it runs in one call.
    cuts: further ways to split it into kernels.
    products: matrix products of one forward pass or gradient step, the flops that a systolic array
        or BLAS computes.
    rounds: how often one firing computes `products`, on average.
    passes: for gradient steps: network → number of its passes in one step.
    assumed: its passes are assumed, not counted.
    operations: operations that eager torch starts in one firing.
    accesses: sequential memory accesses: fetched rows and decisions in the sum tree.
    like: kernel → the kernel whose estimate it has; None: its own.
    rows: kernel → array that it reads in part → axis, first row and end row.
    averaged: its loss is the mean over the batch rows, and one optimiser step follows, so learners
        can share the rows (`kernels.data_parallel`).
    code: origin of its code, if the calibration derives its cost from kinds of the same structure.
    example: a program for a kernel of the kind, for timing.
    example_sizes: sizes of a small kernel of the kind that the contract of kernel kinds does not
        give; the contract runs on that kernel.
    actions: action spaces of its algorithm.
    networks: draws the networks of a random kernel; None: an actor and a critic that learn from
        rollouts.
    horizons: least and most vector steps of a rollout, in random kernels.
    minibatches: it reads a rollout several times, in minibatches.
    """

    arrays: Callable[[Kernel], dict[str, Spec]]
    writes: tuple[str, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)
    name: str = ""
    structure: Structure = "own"
    count: Callable[[Kernel], Work] | None = None
    in_evaluation: str | None = None
    sends: tuple[str, ...] = ()
    per_copy: tuple[str, ...] = ()
    per_group: tuple[str, ...] = ()
    repeatable: bool = False
    policy: Callable[[Kernel], Kernel] | None = None
    side: Literal["acts", "learns", ""] = ""
    stochastic: bool = False
    parts: Callable[[Kernel], Parts] = none
    cuts: Callable[[Kernel], tuple[Parts, ...]] = none
    products: Callable[[Kernel], tuple[Product, ...]] = none
    rounds: Callable[[Kernel], float] = _rounds
    passes: Callable[[Kernel], Mapping[str, Passes]] = _no_passes
    assumed: bool = False
    operations: Callable[[Kernel], float] = once
    accesses: Callable[[Kernel], float] = _nothing
    like: Callable[[Kernel], Kernel] | None = None
    rows: Callable[[Kernel], Mapping[str, tuple[int, int, int]]] = _whole
    averaged: bool = False
    code: str = ""
    example: str | None = None
    example_sizes: Mapping[str, Dim] = field(default_factory=dict)
    actions: Literal["discrete", "continuous", "both"] = "both"
    networks: Networks | None = None
    horizons: tuple[int, int] = (8, 256)
    minibatches: bool = False

    def __post_init__(self) -> None:
        named = {n: Variant(v) if isinstance(v, str) else v for n, v in self.variants.items()}
        object.__setattr__(self, "variants", MappingProxyType(named))

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def family(self) -> str:
        """The first word of the name."""
        return self.name.partition(".")[0]

    @property
    def algorithm(self) -> str:
        """The algorithm in the name; empty if there is none."""
        return self.name.partition(".")[2]

    def kernel(
        self,
        sizes: Mapping[str, Dim] | None = None,
        /,
        *,
        program: str | None = None,
        args: Mapping[str, Arg] | None = None,
        modules: Mapping[str, Module] | None = None,
        interface: tuple[Kernel, ...] = (),
        **dims: Dim,
    ) -> Kernel:
        """Return a kernel with its work counted. Its sizes are `sizes` and `dims` together."""
        dims = {**(sizes or {}), **dims}
        bare = Kernel(
            self.name,
            dims,
            program=program,
            args=args or {},
            modules=modules or {},
            interface=interface,
        )
        flops, read, written, resident = (self.count or self._moved)(bare)
        return replace(bare, flops=flops, bytes_in=read, bytes_out=written, resident_bytes=resident)

    def _moved(self, kernel: Kernel) -> Work:
        """No flops; every array read, and the written arrays also written."""
        arrays = self.arrays(kernel)
        read = sum(size_bytes(spec) for spec in arrays.values())
        return (
            0.0,
            float(read),
            float(sum(size_bytes(arrays[n]) for n in self.written(arrays))),
            0.0,
        )

    def written(self, arrays: Iterable[str]) -> tuple[str, ...]:
        """Return the arrays among `names` that a firing writes."""
        return select_arrays(arrays, self.writes)

    def sent(self, kernel: Kernel) -> tuple[str, ...]:
        """Return the arrays that a firing of `kernel` sends as a message."""
        return select_arrays(self.arrays(kernel), self.sends) if self.sends else ()


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether an array is one of `patterns`: a name, or a prefix that ends in a dot."""
    return any(name == p or (p.endswith(".") and name.startswith(p)) for p in patterns)


def select_arrays(names: Iterable[str], patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if matches(name, patterns))
