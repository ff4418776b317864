"""The kernels that a calibration times: random ones of every family, and arrays for them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from functools import cache
from itertools import islice
from typing import Any

from pearl_devices import Buffers, Device, Kernel, backend, offers, torch_threads
from pearl_devices.base import OPT_IN_VARIANTS, WIDE, Call
from pearl_devices.buffers import allocate, specs
from pearl_devices.kernels import KINDS, KernelKind, kind_of, repeats
from pearl_devices.kernels.replay import tree_levels
from pearl_devices.system import host_system
from pearl_estimators.host.random_kernels import DRAWS, MOST_BYTES, draw_kernels, sizes

MOST_RANDOM = 1 << 20
"""Random numbers drawn for one array; longer ones repeat them."""

RING = ("replay.obs", "replay.next_obs", "replay.reward", "replay.action")
"""Arrays whose contents do not matter. All kernels share their memory (`_fill_shared`)."""
LEAST_SHARED, PAGE = 1 << 20, 4096
"""Least bytes of a shared ring; each array begins on a page."""

CORES = len(host_system.usable_cpus())

MOST_FLOPS, MOST_STEPS = 4e8, 8
"""Largest array bytes and flops of a firing that is timed to calibrate."""
FEW, MANY = 8, 14
"""Points of a family. FEW is for kinds whose cost is the call and the environment, or the sum of
families, if short and long firings differ little."""
SEED, HELD_OUT_SEED = 1, 2


def group(of: str) -> str:
    """Return the group of a family. The kernels of a group are timed together, when first needed.

    Groups are: each algorithm that learns; each way to choose actions, which algorithms share; each
    environment; tables; kernels that only replays need; kernels that only rollouts need; `shared`.
    """
    found = KINDS.get(of.partition(" ")[0])
    if found is None or found.structure == "environment":
        return of
    if found.structure == "table":
        return found.family
    if found.algorithm:
        return found.algorithm if found.code else found.name
    return "shared" if found.structure == "copy" else found.family.partition("_")[0]


def _needs_few(kind: KernelKind) -> bool:
    """Whether a kind needs only few points."""
    fused = kind.structure == "fused" and kind.networks is not None
    return fused or kind.structure in ("environment", "table", "store")


GROUPS = tuple(sorted({group(name) for name in DRAWS}))


def draw_fit_kernels(groups: Collection[str] = GROUPS) -> Iterator[Kernel]:
    """Yield the kernels to fit on: every family of these groups that the CPU backend may have
    timed. They are drawn like users' kernels, so that a left-out point is as far off as a new
    kernel, and the band holds."""
    for name in DRAWS:
        if group(name) not in groups:
            continue
        yield from _some(name, FEW if _needs_few(DRAWS[name][1]) else MANY, SEED)


def draw_held_out_kernels() -> Iterator[Kernel]:
    """Draw a kernel of every family that no fit has seen."""
    known = {sizes(of) for of in draw_fit_kernels()}
    for name in DRAWS:
        yield next(of for of in _some(name, MANY, HELD_OUT_SEED) if sizes(of) not in known)


def _some(name: str, count: int, seed: int) -> Iterator[Kernel]:
    found = draw_kernels([name], seed, most_flops=MOST_FLOPS, most_steps=MOST_STEPS)
    return (of for _, of in islice(found, count))


def offered_variants(of: Kernel) -> dict[str, int]:
    """Return the variants that the CPU backend offers for a kernel on this host by default, with
    cores.

    Variants with several threads of torch are left out (`threaded_kernels`).
    """
    offered = offers(of, Device("host", "cpu", width=CORES, real=True))
    return {v: cores for v, cores in offered if v not in OPT_IN_VARIANTS and v not in WIDE}


THREADS = "torch-2"
"""The variant whose points give the cost of several threads of torch."""


def threaded_families(groups: Collection[str] = GROUPS) -> list[str]:
    """Return the families of these groups that torch runs with several threads on this host."""
    kinds = {name: kind for name, (_, kind, _) in DRAWS.items() if group(name) in groups}
    several = torch_threads.threads_of(THREADS) <= CORES
    return [n for n, k in kinds.items() if several and k.structure == "gradient"]


def threaded_kernels(groups: Collection[str] = GROUPS) -> Iterator[tuple[Kernel, str]]:
    """Yield the kernels of these groups that are timed with several threads of torch if two cores
    are free: the first FEW of each family."""
    for name in threaded_families(groups):
        yield from ((of, THREADS) for of in _some(name, FEW, SEED))


def timed_variant(variant: str) -> str:
    """Return the variant whose timings give the times of this one: THREADS, if it has several
    threads.
    """
    return THREADS if variant in WIDE else variant


def code_of(of: Kernel, variant: str) -> str:
    """Return the name of a kernel's compiled code: kind, variant, program and kind of actions.

    Kernels of one code differ only in sizes, and usually share compiled functions: stacks, tables
    and normalisation are not distinguished.
    """
    acts = "factored" if of.dims.get("choices") else "continuous" if of.dims.get("act") else ""
    return f"{of.kind} {variant} {of.program or ''} {acts}".strip()


IN_A_CALL, CALL_FLOPS = 16, 2e7
"""Maximum iterations of one call, and maximum flops of all of them. A run has many more
iterations."""


def firings_per_call(of: Kernel) -> int:
    """Return the number of firings of the kernel in one call of `bind_filled`."""
    if not repeats(of):
        return 1
    return max(1, min(IN_A_CALL, int(CALL_FLOPS / max(of.flops, 1.0))))


def bind_filled(of: Kernel, variant: str) -> Call:
    """Bind the kernel over arrays filled so that every firing does its full work. Return a call of
    `firings_per_call` firings."""
    shared = _ring(of)
    buffers = allocate([of], {**shared})
    fill({n: a for n, a in buffers.items() if n not in shared}, of)
    call = backend("cpu").bind(of, variant, buffers)
    if not repeats(of):
        return call
    more, others = buffers["loop.more"], firings_per_call(of) - 1

    def whole() -> None:
        more[0] = others  # the call counts it down
        call()

    return whole


@cache
def _fill_shared() -> Any:
    """Memory for the largest ring, uint8, filled with plausible float32."""
    import numpy as np

    found = np.empty(MOST_BYTES // 4, np.float32)
    some = 0.3 * np.random.default_rng(0).standard_normal(MOST_RANDOM, np.float32)
    for at in range(0, found.size, some.size):
        found[at : at + some.size] = some[: found.size - at]
    return found.view(np.uint8)


def _ring(of: Kernel) -> Buffers:
    """The large float32 arrays of a replay, if they fit into the shared memory: hundreds of kernels
    with a ring each would take gigabytes."""
    import numpy as np

    wanted = [(n, s) for n, (s, dtype) in specs(of).items() if n in RING and dtype == "float32"]
    found: Buffers = {}
    at = 0
    if sum(4 * math.prod(shape) for _, shape in wanted) < LEAST_SHARED:
        return found
    for name, shape in wanted:
        size = 4 * math.prod(shape)
        if at + size <= MOST_BYTES:
            found[name] = _fill_shared()[at : at + size].view(np.float32).reshape(shape)
            at += -(-size // PAGE) * PAGE
    return found


def fill(buffers: Buffers, of: Kernel) -> None:
    """Fill with plausible random contents: small networks' weights, a full replay, a valid sum
    tree."""
    import numpy as np

    rng, table = np.random.default_rng(0), kind_of(of).structure == "table"
    exact: dict[str, Any] = {
        "replay.priority": (0.6, 1e-6, 1.0),
        "replay.beta": (0.4, 1.0, 1e5),
        "explore": (0.1, 0.1, 1.0, 0.0),
        "hyper.adam": (0.9, 0.999, 1e-8),
        "hyper.tau": 0.005,
        "hyper.huber": 1.0,
        "hyper.discount": 0.99,
        "hyper.smoothing": (0.2, 0.5),
        "hyper.target_entropy": -1.0,
        "hyper.gae_lambda": 0.95,
        "hyper.clip": 0.2,
        "hyper.entropy": 0.01,
        "hyper.value_weight": 0.5,
        "hyper.normalise": 1.0,
        "hyper.clip_norm": 0.5,
        "act.low": -2.0,
        "act.high": 2.0,
    }
    for name, array in buffers.items():
        if name in exact:
            array[:] = exact[name]
        elif name == "replay.cursor":
            array[:] = 0, of.dim("capacity")
        elif name == "replay.tree":
            array[:] = sum_tree(of.dim("capacity"), of.dim("fanout"), rng)
        elif name == "batch.index":
            array[:] = rng.integers(0, of.dim("capacity"), array.shape)
        elif name.endswith(".action") and array.dtype == np.int64:
            array[:] = rng.integers(0, 2, array.shape)
        elif name == "hyper.lr.q" and table:
            array[:] = 0.1, 0.5
        elif name.startswith("hyper.lr."):
            array[:] = 1e-4
        elif name.startswith("rng."):
            array[0] = 1
        elif name in ("batch.discount", "batch.weight", "batch.td"):
            array[:] = rng.uniform(0.5, 1.0, array.shape)
        elif name.endswith((".m", ".v", ".step", ".steps")):
            array[:] = 0  # Adam starts at zero
        elif name.startswith(("learner.", "policy.")):
            array[:] = 0.08 * rng.standard_normal(array.shape)
        elif name.endswith("obs") and table:
            array[:] = rng.integers(0, of.dim("states"), array.shape)
        elif name in ("step.obs", "step.next_obs") and (units := of.dims.get("units")):
            array[:] = rng.integers(0, 256, array.shape) / units
        elif array.dtype == np.float32:
            some = 0.3 * rng.standard_normal(min(array.size, MOST_RANDOM), np.float32)
            array[:] = np.resize(some, array.shape)


def sum_tree(capacity: int, fanout: int, rng: Any) -> Any:
    """Make a K-ary sum tree over random priorities, root first, in the layout of `replay.tree`."""
    import numpy as np

    widths = tree_levels(capacity, fanout)
    level = np.zeros(widths[-1], np.float32)
    level[:capacity] = rng.uniform(0.1, 1.0, capacity)
    tree = [level]
    for width in reversed(widths[:-1]):
        sums = tree[0].reshape(-1, fanout).sum(axis=1)
        above = np.zeros(width, np.float32)
        above[: len(sums)] = sums
        tree.insert(0, above)
    return np.concatenate(tree)
