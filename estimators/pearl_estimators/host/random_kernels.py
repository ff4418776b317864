"""Random kernels of every family in typical sizes, for calibration and tests.

Half of all widths, batches and fanouts are powers of two, which people prefer. The others are drawn
evenly by their logarithm. Kernels that need much time or memory are left out: rings above
MOST_BYTES, and those that the caller excludes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pearl_devices import Kernel
from pearl_devices.kernel import Dim
from pearl_devices.kernels import KINDS, KernelKind
from pearl_devices.kernels.replay import row_bytes
from pearl_devices.primitives import NATIVE_ENVS

MOST_BYTES = 2**28
TRIES = 1000

Sizes = dict[str, Dim]


def _draw_between(rng: Any, low: int, high: int) -> int:
    """Draw a whole number, evenly by its logarithm."""
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def _draw_liked(rng: Any, low: int, high: int) -> int:
    """Draw a power of two half of the time; both bounds are powers of two."""
    if rng.random() < 0.5:
        return 1 << int(rng.integers(low.bit_length() - 1, high.bit_length()))
    return _draw_between(rng, low, high)


def _draw_hidden(rng: Any) -> tuple[int, ...]:
    depth = int(rng.integers(1, 4))
    if rng.random() < 0.7:
        return (_draw_liked(rng, 16, 512),) * depth
    return tuple(_draw_liked(rng, 16, 512) for _ in range(depth))


def _draw_envs(rng: Any) -> int:
    return _draw_liked(rng, 1, 64)


def _draw_spaces(rng: Any, discrete: bool, program: str | None) -> tuple[Sizes, int]:
    """obs and act, and the number of outputs of a policy."""
    if program is not None:
        return _spaces_of(program)
    obs, outputs = _draw_between(rng, 3, 100), _draw_between(rng, 2 if discrete else 1, 20)
    return {"obs": obs, "act": 0 if discrete else outputs}, outputs


def _spaces_of(program: str) -> tuple[Sizes, int]:
    env = NATIVE_ENVS[program]
    return {"obs": env.obs, "act": env.act}, env.actions or env.act


def _store(rng: Any, sizes: Sizes, envs: int, prioritised: int) -> Sizes:
    """Sizes of a ring of a whole number of vector steps."""
    most = min(10**6, MOST_BYTES // row_bytes(Kernel("", sizes)))
    steps = max(2, _draw_between(rng, 1000, most) // envs)
    fanout = 16 if rng.random() < 0.6 else int(rng.choice((4, 8, 32, 64)))
    return {
        **sizes,
        "envs": envs,
        "capacity": steps * envs,
        "fanout": fanout,
        "prioritised": prioritised,
    }


def _draw_networks(rng: Any, kind: KernelKind, sizes: Sizes, outputs: int) -> Sizes:
    """The networks and further sizes of the algorithm of `kind`."""
    if kind.networks is None:
        raise ValueError(f"{kind.name}: its record draws no networks")
    return kind.networks(
        rng, int(str(sizes["obs"])), int(str(sizes["act"])), outputs, _draw_hidden(rng)
    )


def _draws(rng: Any, networks: Sizes) -> Sizes:
    """batch, and steps as a multiple of the policy's delay."""
    delay = int(str(networks.get("policy_delay", 1)))
    return {"batch": _draw_liked(rng, 16, 1024), "steps": delay * _draw_liked(rng, 1, 8)}


def _env_step(rng: Any, kind: KernelKind, program: str) -> Kernel:
    sizes: Sizes = {"envs": _draw_envs(rng), **_spaces_of(program)[0]}
    return kind.kernel(sizes, program=program)


def _inference(rng: Any, kind: KernelKind, _: str) -> Kernel:
    discrete = kind.actions != "continuous" and rng.random() < 0.7
    sizes, outputs = _draw_spaces(rng, discrete, None)
    envs = _draw_envs(rng)
    if kind.networks is None:
        actor = (int(str(sizes["obs"])), *_draw_hidden(rng), outputs)
        return kind.kernel({**sizes, "envs": envs, "tanh": 1, "actor": actor})
    if kind.actions == "discrete":
        sizes["act"] = 0
    networks = _draw_networks(rng, kind, sizes, outputs)
    policy = next(iter(networks))
    kept = {name: size for name, size in networks.items() if name in (policy, "duelling")}
    return kind.kernel({**sizes, "envs": envs, **kept})


def _replay(rng: Any, kind: KernelKind, how: str) -> Kernel:
    sizes, _ = _draw_spaces(rng, rng.random() < 0.5, None)
    store = _store(rng, sizes, _draw_envs(rng), int(how == PRIORITISED))
    if kind.structure == "insert":
        return kind.kernel(store)
    draw = _draws(rng, {})
    if kind.structure == "prioritise":
        return kind.kernel(draw, capacity=store["capacity"], fanout=store["fanout"])
    return kind.kernel({**store, **draw}, n_step=int(rng.integers(1, 6)))


def _update(rng: Any, kind: KernelKind, _: str) -> Kernel:
    sizes, outputs = _draw_spaces(rng, kind.actions == "discrete", None)
    networks = _draw_networks(rng, kind, sizes, outputs)
    return kind.kernel({**sizes, **_draws(rng, networks), **networks}, program=kind.example)


def _learn(rng: Any, kind: KernelKind, how: str) -> Kernel:
    sizes, outputs = _draw_spaces(rng, kind.actions == "discrete", None)
    store = _store(rng, sizes, _draw_envs(rng), int(how == PRIORITISED))
    networks = _draw_networks(rng, kind, sizes, outputs)
    more: Sizes = {**_draws(rng, networks), "n_step": int(rng.integers(1, 4))}
    return kind.kernel({**store, **networks, **more})


def _program(rng: Any, discrete: bool) -> str:
    return str(rng.choice([n for n, env in NATIVE_ENVS.items() if (env.act == 0) == discrete]))


def _iteration(rng: Any, kind: KernelKind, _: str) -> Kernel:
    program = _program(rng, kind.actions == "discrete")
    sizes, outputs = _draw_spaces(rng, kind.actions == "discrete", program)
    store = _store(rng, sizes, _draw_envs(rng), int(rng.integers(2)))
    networks = _draw_networks(rng, kind, sizes, outputs)
    draws = _draws(rng, networks)
    more: Sizes = {**draws, "n_step": 1, "vector_steps": int(rng.integers(1, 5))}
    return kind.kernel({**store, **networks, **more}, program=program)


def _rollout_sizes(rng: Any, program: str | None, horizons: tuple[int, int]) -> Sizes:
    sizes, outputs = _draw_spaces(rng, rng.random() < 0.5, program)
    obs, hidden, envs, horizon = (
        int(str(sizes["obs"])),
        _draw_hidden(rng),
        _draw_envs(rng),
        _draw_liked(rng, *horizons),
    )
    nets: Sizes = {"actor": (obs, *hidden, outputs), "critic": (obs, *hidden, 1)}
    return {**sizes, "envs": envs, "horizon": horizon, "tanh": 1, **nets}


def _on_policy(rng: Any, kind: KernelKind, _: str) -> Kernel:
    program = _program(rng, bool(rng.integers(2))) if kind.structure == "fused" else None
    sizes = _rollout_sizes(rng, program, kind.horizons)
    if kind.structure == "store":
        kept = {k: v for k, v in sizes.items() if k in ("envs", "obs", "act", "horizon")}
        return kind.kernel(kept)
    if kind.structure == "advantages":
        return kind.kernel({k: v for k, v in sizes.items() if k != "actor"})
    if kind.code == "":  # a kind that only acts
        return kind.kernel({k: v for k, v in sizes.items() if k != "critic"}, program=program)
    rows = int(str(sizes["envs"])) * int(str(sizes["horizon"]))
    epochs, parts = (1, 1)
    if kind.minibatches:
        parts = int(rng.choice([n for n in range(1, 33) if rows % n == 0 and rows // n >= 4]))
        epochs = int(rng.integers(1, 11))
    sizes = {**sizes, "epochs": epochs, "batch": rows // parts, "steps": epochs * parts}
    return kind.kernel(sizes, program=program or kind.example)


def _tabular(rng: Any, kind: KernelKind, _: str) -> Kernel:
    states, actions = _draw_between(rng, 4, 10_000), _draw_between(rng, 2, 20)
    return kind.kernel(envs=_draw_envs(rng), obs=1, act=0, states=states, actions=actions)


def _param_sync(rng: Any, kind: KernelKind, _: str) -> Kernel:
    return kind.kernel(args={"network": "q"}, params=_draw_between(rng, 100, 600_000))


Draw = Callable[[Any, KernelKind, str], Kernel]
PRIORITISED = "prioritised"


def _drawing(kind: KernelKind) -> tuple[Draw, tuple[str, ...]]:
    """The function that draws kernels of a kind, and its families: the programs of environments, or
    the kinds of replay."""
    match kind.structure:
        case "environment":
            return _env_step, tuple(NATIVE_ENVS)
        case "network":
            return _inference, ("",)
        case "insert" | "sample":
            return _replay, ("", PRIORITISED)
        case "prioritise":
            return _replay, ("",)
        case "table":
            return _tabular, ("",)
        case "copy":
            return _param_sync, ("",)
        case "gradient" if kind.networks:
            return _update, ("",)
        case "fused" if kind.networks and kind.side == "learns":
            return _learn, ("", PRIORITISED)
        case "fused" if kind.networks:
            return _iteration, ("",)
    return _on_policy, ("",)


DRAWS: Mapping[str, tuple[Draw, KernelKind, str]] = {
    f"{kind.name} {how}".rstrip(): (_drawing(kind)[0], kind, how)
    for kind in KINDS.values()
    if kind.structure not in ("own", "shared", "sweep", "average", "evaluation")  # timed apart
    for how in _drawing(kind)[1]
}
"""Family → the function that draws a kernel of the family, its kind, and its difference from other
families of the kind."""


def draw_kernels(
    families: Sequence[str], seed: int, *, most_flops: float, most_steps: int
) -> Iterator[tuple[str, Kernel]]:
    """Yield kernels of these families in turn, without end, each with its family. No two are
    equal.
    """
    generators = {name: np.random.default_rng([seed, *name.encode()]) for name in families}
    known: set[tuple[Any, ...]] = set()
    while True:
        for name, rng in generators.items():
            yield name, _draw_one(rng, name, most_flops, most_steps, known)


def _draw_one(
    rng: Any, name: str, most_flops: float, most_steps: int, known: set[tuple[Any, ...]]
) -> Kernel:
    draw, kind, how = DRAWS[name]
    for _ in range(TRIES):
        of = draw(rng, kind, how)
        if of.flops > most_flops or int(str(of.dims.get("steps", 1))) > most_steps:
            continue
        if sizes(of) not in known:
            known.add(sizes(of))
            return of
    raise ValueError(f"{name}: no new kernel in {TRIES} draws")


def sizes(of: Kernel) -> tuple[Any, ...]:
    """Return the values that distinguish a kernel from others."""
    return of.kind, tuple(sorted(of.dims.items())), of.program
