"""Features of the calibrated cost model: counts of a kernel, each with a cost in seconds.

A term whose name ends in the name of a kernel kind or an algorithm belongs only to it, for example
its call or its losses. All other terms cost the same in every kernel of a variant, so that all
kernels help to fit them. Counts are those of the code: tiles of native products
(`primitives.math.products`), operations of torch, and cache misses as far as sizes determine them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from itertools import pairwise

from pearl_devices import Kernel
from pearl_devices.discover import host
from pearl_devices.kernels import Structure, acts, kind_of, parts, repeats
from pearl_devices.kernels.counting import parameters, size
from pearl_devices.kernels.replay import row_bytes, tree_depth, tree_levels
from pearl_estimators.roofline import VECTOR_ENTRY_S, launches

F32, LINE = 4, 64
LANES, ROWS = 16, 8
"""Elements of a vector and rows of the largest tile (`primitives.math.vectors`) on hosts with
AVX-512. Other hosts have fewer of both; there a tile costs more, which the fit includes."""
PACKED_DEPTH, PACKED_ROWS = 128, 32  # as in `primitives.math.products`
LATENCY = 4  # cycles between dependent fused multiply-adds; two start in each cycle
TREE_VECTORS = (8, 16)  # fanouts whose nodes are vectors (`primitives.tree`)
TOGETHER = 6  # environments that gymnasium steps together if it can (`gym_make.BATCHED`)
VALUES_BLOCK = 128  # rows of a pass for advantages (`primitives.rollouts.BLOCK`)

# Bytes of caches if the system does not report them: those of an EPYC of 2024.
ASSUMED_CACHES = {"l1d_bytes": 2.0**15 * 1.5, "l2_bytes": 2.0**20, "l3_bytes": 2.0**25}

OVERHEAD = ("call", "gradient_step", "product", "operation", "backward_operation", "layer", "time")
MEMORY = ("row", "miss", "far", "level", "child", "between")
"""First words of terms that are overhead, and of terms that are memory; others compute."""


@cache
def cache_bytes() -> tuple[float, float, float]:
    """Return the bytes of one core's data caches on this host: first, second and third level."""
    figures = host().device("cpu").figures
    first, second, third = (figures.get(n, size) for n, size in ASSUMED_CACHES.items())
    return first, second, third


def miss_rate(footprint: float, level: int) -> float:
    """Return the share of random accesses to `footprint` bytes that this level's cache misses."""
    return max(0.0, 1.0 - cache_bytes()[level - 1] / footprint) if footprint > 0 else 0.0


class Terms(dict[str, float]):
    """Name → number; `add` increases a number."""

    def add(self, name: str, number: float) -> None:
        if number:
            self[name] = self.get(name, 0.0) + number


def terms(kernel: Kernel, variant: str) -> Mapping[str, float]:
    """Return the terms of one firing of `kernel`."""
    found, structure = Terms(), kind_of(kernel).structure
    what = f"{kernel.kind} {kernel.program}" if structure == "environment" else kernel.kind
    if variant == "gymnasium" and kernel.program in VECTOR_ENTRY_S:
        what += " together" if kernel.dim("envs") >= TOGETHER else " one by one"
    if not repeats(kernel):  # a run makes very many iterations in one call
        found.add(f"call {what}", 1.0)
    if structure in ("environment", "table"):
        found.add(f"envs {what}", kernel.dim("envs"))
        if structure == "table":
            found.add(f"numbers {what}", kernel.dim("envs") * kernel.dim("actions"))
            table = 8.0 * kernel.dim("states") * kernel.dim("actions")
            found.add("miss_table", kernel.dim("envs") * miss_rate(table, 1))
    elif variant.startswith("torch"):
        _torch(found, kernel, structure)
    elif acts(kernel):
        _fused(found, kernel, variant)
    else:
        _native(found, kernel, structure, 2 if variant.endswith("-pair") else 1)
    return found


def _fused(t: Terms, k: Kernel, variant: str) -> None:
    """Add the terms of the parts of a fused kernel, without their calls."""
    for part, firings in parts(k):
        for name, number in terms(part, variant).items():
            if not name.startswith("call "):
                t.add(name, firings * number)
    steps = "horizon" if "horizon" in k.dims else "vector_steps"
    t.add(f"time {k.kind}", k.dim(steps))


# --- native


def _native(t: Terms, k: Kernel, structure: Structure, cores: int) -> None:
    match structure:
        case "network":
            _acting(t, k)
        case "gradient":
            _learning(t, k, cores)
        case "fused":
            _learning(t, k, cores)
            _sampling(t, k)
            if k.dim("prioritised"):
                _tree(t, k, "written")
        case "insert":
            _insertion(t, k)
        case "sample":
            _sampling(t, k)
            t.add(f"gradient_step {k.kind}", k.dim("steps"))
        case "prioritise":
            _tree(t, k, "written")
            t.add(f"gradient_step {k.kind}", k.dim("steps"))
        case "store":
            t.add(f"envs {k.kind}", k.dim("envs"))
            t.add(f"numbers {k.kind}", k.dim("envs") * _row_numbers(k))
        case "advantages":
            _advantages(t, k)
        case "copy":
            params = k.dim("params")
            t.add(f"numbers {k.kind}", params)
            t.add(f"far {k.kind} 1", params * miss_rate(2 * F32 * params, 1))
            t.add(f"far {k.kind} 2", params * miss_rate(2 * F32 * params, 2))


def _row_numbers(k: Kernel) -> int:
    return 2 * k.dim("obs") + max(k.dim("act"), 1)


def _row_tiles(rows: int) -> list[tuple[int, int]]:
    """Yield (rows of a tile, number of such tiles), in the order of `primitives.products`."""
    found = [(ROWS, rows // ROWS)]
    left = rows % ROWS
    for height in (4, 2, 1):
        if left >= height:
            found.append((height, 1))
            left -= height
    return found


def _stays_cached(rows: int, stride: int, lines: int) -> bool:
    """Whether a strip of `rows` rows, `stride` bytes apart, stays in the first cache. Strides by a
    power of two use only a part of a cache of 8 to 12 ways of 4096 bytes."""
    ways = cache_bytes()[0] / 4096
    apart = math.gcd(stride, 4096)
    usable = ways * 4096 / LINE
    if apart >= lines * LINE:
        usable = min(usable, 4096 / apart * lines * ways)
    return rows * lines <= 0.8 * usable


def _product(t: Terms, m: int, n: int, depth: int, times: float, stride: int = 0) -> None:
    """m by n elements of `depth` terms each. stride: bytes from row to row of the right factor."""
    whole, part = n // (2 * LANES), -(-(n % (2 * LANES)) // LANES)
    stride, cycles, tiles = stride or F32 * n, 0.0, 0.0
    for height, count in _row_tiles(m):
        cycles += count * depth * whole * max(height, LATENCY)
        cycles += count * depth * part * max(height / 2, LATENCY)
        tiles += count
    packed = depth >= PACKED_DEPTH and m >= PACKED_ROWS  # a strip is read once, into one piece
    missed, apart = (depth * 2.0 * whole, 2 * LANES * F32) if packed else (0.0, stride)
    if whole and not _stays_cached(depth, apart, 2):
        missed += tiles * depth * 2 * whole
    if part and not _stays_cached(depth, stride, 1):
        missed += tiles * depth * part
    if whole + part > 1 and m * depth * F32 > 0.6 * cache_bytes()[0]:
        missed += (whole + part) * m * depth * F32 / LINE
    t.add("cycles", cycles * times)
    t.add("tiles", tiles * (whole + part) * times)
    t.add("vectors", m * (2 * whole + part) * times)
    t.add("miss_product", missed * times)
    t.add("product", times)


def _forward(
    t: Terms, layers: tuple[int, ...], rows: int, times: float, curved: bool = False
) -> None:
    last = len(layers) - 2
    for layer, (i, o) in enumerate(pairwise(layers)):
        if o > 2 or i < LANES:
            _product(t, rows, o, i, times)
        else:
            _dots(t, rows, o, i, times)
        if curved and layer < last:
            t.add("tanh", times * rows * o)


def _dots(t: Terms, rows: int, columns: int, depth: int, times: float) -> None:
    t.add("dots", times * rows * columns)
    t.add("dot_cycles", times * rows * -(-depth // LANES) * (columns + 1) / 2)
    t.add("product", times)


def _weights(t: Terms, layers: tuple[int, ...], rows: int, times: float) -> None:
    """Gradients of all weights and biases."""
    for i, o in pairwise(layers):
        if o < LANES < i:
            _product(t, o, i, rows, times)
            if o > 1:
                t.add("turned_singly", times * i * o)
        else:
            _product(t, i, o, rows, times)
        _product(t, 1, o, rows, times)


def _input_gradient(t: Terms, i: int, o: int, rows: int, times: float) -> None:
    """The gradient of the input of a layer from i to o."""
    whole = (i - i % LANES) * (o - o % LANES)
    t.add("turned", times * whole)
    t.add("turned_singly", times * (i * o - whole))
    _product(t, rows, i, o, times, 2 * LANES * F32)


def _acting(t: Terms, k: Kernel) -> None:
    layers, n = k.layers(), k.dim("envs")
    _forward(t, layers, n, 1, bool(k.dims.get("tanh")))
    t.add(f"rows {k.kind}", n)
    t.add(f"components {k.kind}", n * k.dim("act"))
    t.add(f"outputs {k.kind}", n * layers[-1])
    weights = float(F32 * parameters(layers))
    t.add("lines", weights / LINE)
    t.add("far_weights 1", weights / LINE * miss_rate(weights, 1))
    t.add("far_weights 2", weights / LINE * miss_rate(weights, 2))


def _learning(t: Terms, k: Kernel, cores: int) -> None:
    """Gradient steps; on two cores each takes half of the batch and half of the parameters."""
    kind = kind_of(k)
    algorithm, steps, curved = kind.code, k.dim("steps"), bool(k.dims.get("tanh"))
    batch = -(-k.dim("batch") // cores)
    runs, held, moved, crossed = kind.passes(k), 0.0, 0.0, 0.0
    for name, p in runs.items():
        layers, learned = k.layers(name), size(k, name)
        _forward(t, layers, batch, steps * p.forward, curved)
        _weights(t, layers, batch, steps * p.backward)
        for i, o in pairwise(layers[1:]):
            _input_gradient(t, i, o, batch, steps * (p.backward + p.through))
            if curved:
                t.add("tanh_back", steps * p.backward * batch * i)
        if p.through:
            components, first = k.dim("act"), layers[1]
            if components <= 2:
                _dots(t, batch, components, first, steps * p.through)
            else:
                _input_gradient(t, components, first, batch, steps * p.through)
        t.add("adam", steps * p.adam * learned / cores)
        t.add("follow", steps * p.follow * learned / cores)
        if cores > 1:  # the other side's half of gradients, parameters and target
            halves = steps * (2 * p.adam + p.follow)
            t.add("between_lines", halves * learned * F32 / LINE / cores)
        held += F32 * learned * (4 + p.target)
        everywhere = steps * (p.forward + p.backward + p.through)
        moved += everywhere * learned
        crossed += (everywhere + steps * p.backward) * batch * sum(layers[1:])
    activations = float(F32 * batch * sum(sum(k.layers(name)[1:]) for name in runs))
    t.add("far_adam 1", t.get("adam", 0.0) * miss_rate(held, 1))
    t.add("far_adam 2", t.get("adam", 0.0) * miss_rate(held, 2))
    t.add("far_adam 3", t.get("adam", 0.0) * miss_rate(held, 3))
    t.add("far_parameters 2", moved * miss_rate(held + activations, 2))
    t.add("far_parameters 3", moved * miss_rate(held + activations, 3))
    t.add("far_activations 1", crossed * miss_rate(activations, 1))
    t.add("far_activations 2", crossed * miss_rate(activations, 2))
    rows = batch * steps
    t.add("joined", rows * (k.dim("obs") + k.dim("act")))
    t.add(f"gradient_step {algorithm}", steps)
    t.add(f"rows {algorithm}", rows)
    t.add(f"components {algorithm}", rows * k.dim("act"))
    t.add(f"outputs {algorithm}", rows * k.layers(_policy(k))[-1])


def _policy(k: Kernel) -> str:
    return next(iter(k.networks)) if "actor" not in k.dims else "actor"


def _insertion(t: Terms, k: Kernel) -> None:
    n = k.dim("envs")
    t.add(f"envs {k.kind}", n)
    t.add(f"numbers {k.kind}", n * _row_numbers(k))
    if k.dim("prioritised"):
        depth, fanout = tree_depth(k), k.dim("fanout")
        t.add("level_inserted", depth)
        t.add("leaf_inserted", n)
        t.add("child_inserted", max(n, fanout) + depth * fanout)


def _sampling(t: Terms, k: Kernel) -> None:
    draws = k.dim("batch") * k.dim("steps")
    ring, later = float(k.dim("capacity") * row_bytes(k)), k.dim("n_step") - 1
    lines = 2 * (F32 * k.dim("obs") / LINE + 1)
    t.add("row", draws)
    t.add("row_later", draws * later)
    t.add("row_numbers", draws * _row_numbers(k))
    for level in (2, 3):
        t.add(f"miss_row {level}", draws * miss_rate(ring, level))
        t.add(f"miss_line {level}", draws * lines * miss_rate(ring, level))
        t.add(f"miss_later {level}", draws * later * miss_rate(ring, level))
    if k.dim("prioritised"):
        _tree(t, k, "drawn")


def _tree(t: Terms, k: Kernel, how: str) -> None:
    """Draws from the sum tree, or priorities written to it."""
    draws, depth = k.dim("batch") * k.dim("steps"), tree_depth(k)
    t.add(f"leaf_{how}", draws)
    nodes = float(draws * depth)
    if how == "written":  # each node once per batch
        nodes = 0.0
        for width in tree_levels(k.dim("capacity"), k.dim("fanout"))[:-1]:
            nodes += k.dim("steps") * width * -math.expm1(-k.dim("batch") / width)
    t.add(f"level_{how}", nodes)
    if k.dim("fanout") not in TREE_VECTORS:
        t.add(f"child_{how}", nodes * k.dim("fanout"))
    for level in (1, 2):
        t.add(f"miss_{how} {level}", draws * miss_rate(float(F32 * k.dim("capacity")), level))


def _advantages(t: Terms, k: Kernel) -> None:
    envs, layers = k.dim("envs"), k.layers("critic")
    rows = envs * k.dim("horizon")
    block = max(envs, min(VALUES_BLOCK, rows))
    blocks, left = divmod(rows, block)
    for size_of, times in ((block, blocks), (left, 1 if left else 0), (envs, 1)):
        if times:
            _forward(t, layers, size_of, times, bool(k.dims.get("tanh")))
    t.add(f"rows {k.kind}", rows)
    t.add(f"time {k.kind}", k.dim("horizon"))


# --- torch


def _torch(t: Terms, k: Kernel, structure: Structure) -> None:
    if structure == "network":
        layers, n = k.layers(), k.dim("envs")
        _torch_forward(t, k, layers, n, 1)
        t.add("layer", len(layers) - 1)
        t.add(f"product {k.kind}", len(layers) - 1)
        t.add(f"rows {k.kind}", n)
        t.add(f"outputs {k.kind}", n * layers[-1])
    elif structure == "gradient":
        _torch_learning(t, k)
    elif structure == "advantages":
        layers, n = k.layers("critic"), k.dim("envs")
        rows = n * k.dim("horizon")
        _torch_forward(t, k, layers, rows, 1)
        _torch_forward(t, k, layers, n, 1)
        t.add(f"layer {k.kind}", len(layers) - 1)
        t.add(f"time {k.kind}", k.dim("horizon"))
        t.add("joined", rows * layers[0])
    elif structure == "store":
        t.add(f"numbers {k.kind}", k.dim("envs") * _row_numbers(k))


def _torch_product(t: Terms, m: int, depth: int, n: int, times: float) -> None:
    t.add("flops", 2.0 * m * depth * n * times)
    t.add("sides", (m * depth + depth * n + m * n) * times)


def _torch_forward(t: Terms, k: Kernel, layers: tuple[int, ...], rows: int, times: float) -> None:
    last = len(layers) - 2
    for layer, (i, o) in enumerate(pairwise(layers)):
        _torch_product(t, rows, i, o, times)
        t.add("elements", times * rows * o)
        if layer < last and k.dims.get("tanh"):
            t.add("tanh", times * rows * o)


def _torch_learning(t: Terms, k: Kernel) -> None:
    kind = kind_of(k)
    algorithm, steps, batch = kind.algorithm, k.dim("steps"), k.dim("batch")
    held = 0.0
    for name, p in kind.passes(k).items():
        layers, learned = k.layers(name), size(k, name)
        _torch_forward(t, k, layers, batch, steps * p.forward)
        for layer, (i, o) in enumerate(pairwise(layers)):
            _torch_product(t, i, batch, o, steps * p.backward)
            t.add("elements_back", steps * p.backward * batch * o)
            back = steps * (p.through + (p.backward if layer else 0))
            _torch_product(t, batch, o, i, back)
            t.add("elements_back", back * batch * i)
        held += F32 * learned * (4 + p.target)
        t.add("adam", steps * p.adam * learned)
        t.add("follow", steps * p.follow * learned)
        layers_of = steps * (len(layers) - 1)
        t.add("operation", layers_of * p.forward)
        t.add("backward_operation", layers_of * (p.backward + p.through))
    t.add("far_adam 1", t.get("adam", 0.0) * miss_rate(held, 1))
    t.add("far_adam 2", t.get("adam", 0.0) * miss_rate(held, 2))
    rows = batch * steps
    t.add("joined", rows * k.dim("obs"))
    t.add(f"gradient_step {algorithm}", steps)
    t.add("launches", launches(k, "torch"))
    t.add(f"outputs {algorithm}", rows * k.layers(_policy(k))[-1])
    if k.dims.get("duelling"):
        t.add("operation duelling", steps)
