"""`KernelKind`: the record of all that planner, runtime, estimators and backends know of a kind.

A new kind is one record in one file of `pearl_devices.kernels`, whose name stands in `FAMILIES`;
one of the user's own is named by its module path (`docs/own_kernel.md`).
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
"""Kernels that a fused one runs as one call, each with its firings."""

Structure = Literal[
    "environment",  # steps environments
    "network",  # a forward pass that chooses actions
    "gradient",  # gradient steps on networks
    "insert",  # stores transitions in a ring, with a sum tree where it is prioritised
    "sample",  # draws batches from that ring
    "prioritise",  # writes priorities into the sum tree
    "store",  # stores a vector step in a rollout
    "advantages",  # judges a rollout: a forward pass, then a trace backwards in time
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
"""What a kind computes. Devices, estimators and the runtime go by it and never by a kind's name."""


LEFT_OUT = "left out"
"""`KernelKind.in_evaluation` of one that is no part of the policy: it fires in training alone."""

Networks = Callable[[Any, int, int, int, tuple[int, ...]], dict[str, Dim]]
"""(generator, observation's components, action's, outputs of a policy, hidden widths) → the
networks and further sizes of an algorithm in a random kernel."""


@dataclass(frozen=True)
class Passes:
    """How often one gradient step runs one network, on average.

    forward: passes of a batch.
    backward: passes to its weights.
    through: passes to its input, not to its weights, as an actor learns through a critic.
    adam: steps of the optimiser.
    follow: moves of its target.
    target: whether it has a target.
    """

    forward: float
    backward: float
    through: float = 0.0
    adam: float = 1.0
    follow: float = 1.0
    target: bool = True


def always(kernel: Kernel) -> bool:
    """Fits every kernel."""
    return True


def nowhere(name: str) -> bool:
    """No array."""
    return False


def _whole(kernel: Kernel) -> Mapping[str, tuple[int, int, int]]:
    return {}


def once(kernel: Kernel) -> float:
    """One, whatever the kernel."""
    return 1.0


@dataclass(frozen=True)
class Variant:
    """One implementation of a kind.

    function: `module:function`, imported when a kernel is bound, or what tells it by the kernel.
        It takes the kernel and the arrays by name, and returns the call of one firing.
    cores: how many it takes.
    fits: whether it can run a kernel of the kind.
    on_host: of one that also runs over tensors on a device, whether an array stays in the host's
        memory: counters and constants that it reads as numbers, or rows that kernels read there.
    launches: of one in CUDA, how many kernels a firing launches.
    """

    function: str | Callable[[Kernel], str]
    cores: int = 1
    fits: Callable[[Kernel], bool] = always
    on_host: Callable[[str], bool] = nowhere
    launches: Callable[[Kernel], float] = once

    def program(self, kernel: Kernel) -> str:
        """The `module:function` for this kernel."""
        return self.function if isinstance(self.function, str) else self.function(kernel)


def primitive(
    where: str,
    cores: int = 1,
    fits: Callable[[Kernel], bool] = always,
    on_host: Callable[[str], bool] = nowhere,
) -> Variant:
    """A variant whose `module:function` lies in `pearl_devices.primitives`."""
    return Variant(f"pearl_devices.primitives.{where}", cores, fits, on_host)


def nbytes(spec: Spec) -> int:
    """Bytes of an array."""
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
    """A kind of kernel. Of a kind of the user's own `arrays`, `writes` and `variants` are enough.

    arrays: kernel → name → (shape, dtype) of every array that a firing reads or writes.
    writes: the arrays that it writes, by name or by a prefix that ends in a dot.
    variants: name → implementation on a CPU, in order of preference. A `module:function` is enough;
        one named `python` is called in every firing, with the kernel and its arrays by name.
    cuda: name → implementation in CUDA. Its function takes the kernel, the arrays on the device by
        name (`gpu.driver.Arrays`) and the driver, and returns the call of one firing.
    fpga: of one that an engine of the simulated FPGA computes, two functions as `module:function`:
        kernel and shape to the engine's program, kernel, arrays and size of the array to the call
        of its twin.
    name: what `Kernel.kind` says, `family` or `family.algorithm`; of the user's own it is given.
    structure: what it computes.
    word: a call of it in reports, a verb or noun of the field; empty: the name of its task.
    does: what a call does, for "step moves the environments on"; empty where `word` is.
    count: kernel → flops, bytes and scratch of one firing; None: no flops, the bytes of its arrays.
    in_evaluation: of one that writes env.obs or act.action, and so stands between environments and
        network: the `module:function` that changes these rows and nothing else in evaluation and in
        a policy, called as a variant `python` is, or LEFT_OUT; None: it stands elsewhere.
    sends: those among `writes` that other tasks read as a message, in slots; the rest is state.
    per_copy: arrays of which every copy of a task that is split has its own.
    per_group: arrays of which every group of environments has its own.
    repeatable: a firing that was cut off can be done again from what it reads.
    policy: of one that writes the policy of a loop that does not act, kernel → the one that acts in
        evaluation.
    side: `acts` or `learns` where it belongs to one side of the loop and can be timed beside the
        other side; else empty.
    stochastic: it draws random numbers, other than to explore.
    parts: of a fused kind, what it runs as one call.
    cuts: further ways to cut it into kernels.
    products: the matrix products of one forward pass or gradient step, the part of the flops that a
        systolic array or BLAS computes.
    rounds: how often one firing computes `products`, on average.
    passes: of gradient steps: network → how often one step runs it.
    assumed: nobody counted its passes.
    operations: operations that eager torch starts in one firing.
    accesses: rows fetched and decisions in the sum tree that each wait for the one before.
    like: kernel → the one whose estimate it has; None: its own.
    rows: kernel → arrays of which it reads some rows alone → their axis, first and end.
    averaged: a loss of gradient steps is the mean over the rows of the batch, and one step of the
        optimiser follows it: learners can take shares (`kernels.shares`).
    code: whose code it runs, where the calibration tells its cost from others of its structure.
    example: a program that a kernel of the kind may have, to time it with.
    example_sizes: sizes of a small kernel of the kind that the contract of kernel kinds does not
        give; the contract is run on that kernel.
    actions: which actions its algorithm takes.
    networks: draws its algorithm's networks for a random kernel; None where they are an actor and a
        critic that learn from rollouts.
    horizons: least and most vector steps of a rollout, in random kernels.
    minibatches: it goes over a rollout several times, in parts.
    """

    arrays: Callable[[Kernel], dict[str, Spec]]
    writes: tuple[str, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)
    cuda: Mapping[str, Variant] = field(default_factory=dict)
    fpga: tuple[str, str] | None = None
    name: str = ""
    structure: Structure = "own"
    word: str = ""
    does: str = ""
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
        object.__setattr__(self, "cuda", MappingProxyType(dict(self.cuda)))

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def family(self) -> str:
        """The first word of the name."""
        return self.name.partition(".")[0]

    @property
    def algorithm(self) -> str:
        """The algorithm in the name; empty where there is none."""
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
        """A kernel with its work counted. Its sizes are `sizes` and `dims` together."""
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
        """No flops; all arrays read, those that are written also written."""
        arrays = self.arrays(kernel)
        read = sum(nbytes(spec) for spec in arrays.values())
        return 0.0, float(read), float(sum(nbytes(arrays[n]) for n in self.written(arrays))), 0.0

    def written(self, arrays: Iterable[str]) -> tuple[str, ...]:
        """Those of these arrays that a firing writes."""
        return chosen(arrays, self.writes)

    def on_host(self, kernel: Kernel, variant: str) -> tuple[str, ...]:
        """The arrays that a variant in CUDA keeps in the host's memory."""
        found = self.cuda.get(variant)
        return tuple(n for n in self.arrays(kernel) if found.on_host(n)) if found else ()

    def sent(self, kernel: Kernel) -> tuple[str, ...]:
        """The arrays that a firing of `kernel` sends as a message."""
        return chosen(self.arrays(kernel), self.sends) if self.sends else ()


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether an array is one of `patterns`: a name, or a prefix that ends in a dot."""
    return any(name == p or (p.endswith(".") and name.startswith(p)) for p in patterns)


def chosen(names: Iterable[str], patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if matches(name, patterns))
