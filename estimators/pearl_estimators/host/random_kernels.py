"""Random kernels of every family, in the sizes that users have, to calibrate on and to test with.

Half of all widths, batches and fanouts are the powers of two that people like, the others anything
in between, evenly by their logarithm. Left out is what cannot be timed in little time or memory:
rings above MOST_BYTES, and what the caller says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pearl_devices import Kernel, kernel
from pearl_devices.kernel import Dim
from pearl_devices.kernels.replay import row_bytes
from pearl_devices.primitives import NATIVE_ENVS

MOST_BYTES = 2**28
TRIES = 1000

LOSSES = {
    name: f"pearl.algorithms.{name}:losses" for name in ("dqn", "ddpg", "td3", "sac", "ppo", "a2c")
}
"""The torch losses of the update kernels, resolved by the backend when it binds."""

Sizes = dict[str, Dim]


def _between(rng: Any, low: int, high: int) -> int:
    """A whole number, evenly by its logarithm."""
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))


def _liked(rng: Any, low: int, high: int) -> int:
    """Half of the time a power of two, of bounds that are powers of two."""
    if rng.random() < 0.5:
        return 1 << int(rng.integers(low.bit_length() - 1, high.bit_length()))
    return _between(rng, low, high)


def _hidden(rng: Any) -> tuple[int, ...]:
    depth = int(rng.integers(1, 4))
    if rng.random() < 0.7:
        return (_liked(rng, 16, 512),) * depth
    return tuple(_liked(rng, 16, 512) for _ in range(depth))


def _envs(rng: Any) -> int:
    return _liked(rng, 1, 64)


def _spaces(rng: Any, discrete: bool, program: str | None) -> tuple[Sizes, int]:
    """obs and act, and how many outputs a policy has."""
    if program is not None:
        env = NATIVE_ENVS[program]
        return {"obs": env.obs, "act": env.act}, env.actions or env.act
    obs, outputs = _between(rng, 3, 100), _between(rng, 2 if discrete else 1, 20)
    return {"obs": obs, "act": 0 if discrete else outputs}, outputs


def _store(rng: Any, sizes: Sizes, envs: int, prioritised: int) -> Sizes:
    """A ring of a whole number of vector steps."""
    bare = Kernel("replay_insert", {**sizes, "envs": envs})
    most = min(10**6, MOST_BYTES // row_bytes(bare))
    steps = max(2, _between(rng, 1000, most) // envs)
    fanout = 16 if rng.random() < 0.6 else int(rng.choice((4, 8, 32, 64)))
    return {
        **sizes,
        "envs": envs,
        "capacity": steps * envs,
        "fanout": fanout,
        "prioritised": prioritised,
    }


def _networks(rng: Any, algorithm: str, sizes: Sizes, outputs: int) -> Sizes:
    obs, act, hidden = int(str(sizes["obs"])), int(str(sizes["act"])), _hidden(rng)
    actor, critic = (obs, *hidden, outputs), (obs + act, *hidden, 1)
    if algorithm == "dqn":
        duelling = int(rng.random() < 0.3)
        more: Sizes = {"duelling": 1} if duelling else {}
        return {"q": (obs, *hidden, outputs + duelling), **more, "double": int(rng.integers(2))}
    if algorithm == "ddpg":
        return {"actor": actor, "critic": critic}
    twin: Sizes = {"critic1": critic, "critic2": critic}
    if algorithm == "td3":
        return {"actor": actor, **twin, "policy_delay": 2}
    return {"actor": (obs, *hidden, 2 * outputs), **twin, "alpha": (0, 1)}


def _draws(rng: Any, algorithm: str) -> Sizes:
    """batch, and steps of which the policy's delay is a divisor."""
    delay = 2 if algorithm in ("td3", "sac") else 1
    return {"batch": _liked(rng, 16, 1024), "steps": delay * _liked(rng, 1, 8)}


def _env_step(rng: Any, name: str) -> Kernel:
    sizes: Sizes = {"envs": _envs(rng), **_spaces(rng, False, name)[0]}
    return kernel("env_step", sizes, program=name)


def _inference(rng: Any, name: str) -> Kernel:
    sizes, outputs = _spaces(rng, name in ("dqn", "ppo") and rng.random() < 0.7, None)
    envs = _envs(rng)
    if name == "ppo":
        actor = (int(str(sizes["obs"])), *_hidden(rng), outputs)
        return kernel("inference.ppo", {**sizes, "envs": envs, "tanh": 1, "actor": actor})
    if name == "dqn":
        sizes["act"] = 0
    networks = _networks(rng, name, sizes, outputs)
    kept = {k: v for k, v in networks.items() if k in ("q", "actor", "duelling")}
    return kernel(f"inference.{name}", {**sizes, "envs": envs, **kept})


def _replay(rng: Any, name: str) -> Kernel:
    kind, _, how = name.partition(" ")
    sizes, _ = _spaces(rng, rng.random() < 0.5, None)
    store = _store(rng, sizes, _envs(rng), int(how == "prioritised"))
    if kind == "replay_insert":
        return kernel(kind, store)
    draw = _draws(rng, "")
    if kind == "replay_update":
        return kernel(kind, draw, capacity=store["capacity"], fanout=store["fanout"])
    return kernel(kind, {**store, **draw}, n_step=int(rng.integers(1, 6)))


def _update(rng: Any, name: str) -> Kernel:
    sizes, outputs = _spaces(rng, name == "dqn", None)
    sizes = {**sizes, **_draws(rng, name), **_networks(rng, name, sizes, outputs)}
    return kernel(f"update.{name}", sizes, program=LOSSES[name])


def _learn(rng: Any, name: str) -> Kernel:
    algorithm, _, how = name.partition(" ")
    sizes, outputs = _spaces(rng, algorithm == "dqn", None)
    store = _store(rng, sizes, _envs(rng), int(how == "prioritised"))
    networks = _networks(rng, algorithm, sizes, outputs)
    more: Sizes = {**_draws(rng, algorithm), "n_step": int(rng.integers(1, 4))}
    return kernel(f"learn.{algorithm}", {**store, **networks, **more})


def _program(rng: Any, discrete: bool) -> str:
    return str(rng.choice([n for n, env in NATIVE_ENVS.items() if (env.act == 0) == discrete]))


def _iteration(rng: Any, name: str) -> Kernel:
    program = _program(rng, name == "dqn")
    sizes, outputs = _spaces(rng, name == "dqn", program)
    store = _store(rng, sizes, _envs(rng), int(rng.integers(2)))
    networks = _networks(rng, name, sizes, outputs)
    more: Sizes = {**_draws(rng, name), "n_step": 1, "vector_steps": int(rng.integers(1, 5))}
    return kernel(f"iteration.{name}", {**store, **networks, **more}, program=program)


def _rollout_sizes(rng: Any, program: str | None, horizons: tuple[int, int]) -> Sizes:
    sizes, outputs = _spaces(rng, rng.random() < 0.5, program)
    obs, hidden, envs, horizon = (
        int(str(sizes["obs"])),
        _hidden(rng),
        _envs(rng),
        _liked(rng, *horizons),
    )
    nets: Sizes = {"actor": (obs, *hidden, outputs), "critic": (obs, *hidden, 1)}
    return {**sizes, "envs": envs, "horizon": horizon, "tanh": 1, **nets}


def _on_policy(rng: Any, name: str) -> Kernel:
    kind, _, algorithm = name.partition(".")
    program = _program(rng, bool(rng.integers(2))) if kind in ("rollout", "iteration") else None
    sizes = _rollout_sizes(rng, program, (4, 32) if algorithm == "a2c" else (8, 256))
    if kind == "rollout_insert":
        kept = {k: v for k, v in sizes.items() if k in ("envs", "obs", "act", "horizon")}
        return kernel(kind, kept)
    if kind == "gae":
        return kernel(kind, {k: v for k, v in sizes.items() if k != "actor"})
    if kind == "rollout":
        return kernel(name, {k: v for k, v in sizes.items() if k != "critic"}, program=program)
    rows = int(str(sizes["envs"])) * int(str(sizes["horizon"]))
    epochs, parts = (1, 1)
    if algorithm == "ppo":
        parts = int(rng.choice([n for n in range(1, 33) if rows % n == 0 and rows // n >= 4]))
        epochs = int(rng.integers(1, 11))
    sizes = {**sizes, "epochs": epochs, "batch": rows // parts, "steps": epochs * parts}
    return kernel(name, sizes, program=program or LOSSES[algorithm])


def _tabular(rng: Any, name: str) -> Kernel:
    states, actions = _between(rng, 4, 10_000), _between(rng, 2, 20)
    return kernel(name, envs=_envs(rng), obs=1, act=0, states=states, actions=actions)


def _param_sync(rng: Any, name: str) -> Kernel:
    return kernel(name, args={"network": "q"}, params=_between(rng, 100, 600_000))


Draw = Callable[[Any, str], Kernel]
VALUE = ("dqn", "ddpg", "td3", "sac")

DRAWS: Mapping[str, tuple[Draw, str]] = {
    **{f"env_step {name}": (_env_step, name) for name in NATIVE_ENVS},
    **{f"inference.{name}": (_inference, name) for name in ("dqn", "ddpg", "sac", "ppo")},
    **{
        name: (_replay, name)
        for name in (
            "replay_insert",
            "replay_insert prioritised",
            "replay_sample",
            "replay_sample prioritised",
            "replay_update",
        )
    },
    **{f"update.{name}": (_update, name) for name in VALUE},
    **{f"learn.{n}{how}": (_learn, n + how) for n in VALUE for how in ("", " prioritised")},
    **{f"iteration.{name}": (_iteration, name) for name in VALUE},
    **{
        name: (_on_policy, name)
        for name in (
            "rollout_insert",
            "gae",
            "update.ppo",
            "update.a2c",
            "rollout.ppo",
            "iteration.ppo",
            "iteration.a2c",
        )
    },
    **{f"tabular.{n}": (_tabular, f"tabular.{n}") for n in ("choose", "q_learning", "sarsa")},
    "param_sync": (_param_sync, "param_sync"),
}
"""Family → what draws a kernel of it, and the name given to that."""


def drawn(
    families: Sequence[str], seed: int, *, most_flops: float, most_steps: int
) -> Iterator[tuple[str, Kernel]]:
    """Kernels of these families in turn, without end, each with its family; no two are alike.

    most_flops, most_steps: flops and gradient steps of a firing. The random numbers of a family
    depend on the seed and its name alone.
    """
    generators = {name: np.random.default_rng([seed, *name.encode()]) for name in families}
    known: set[tuple[Any, ...]] = set()
    while True:
        for name, rng in generators.items():
            yield name, _one(rng, name, most_flops, most_steps, known)


def _one(
    rng: Any, name: str, most_flops: float, most_steps: int, known: set[tuple[Any, ...]]
) -> Kernel:
    draw, arg = DRAWS[name]
    for _ in range(TRIES):
        of = draw(rng, arg)
        if of.flops > most_flops or int(str(of.dims.get("steps", 1))) > most_steps:
            continue
        if sizes(of) not in known:
            known.add(sizes(of))
            return of
    raise ValueError(f"{name}: no new kernel in {TRIES} draws")


def sizes(of: Kernel) -> tuple[Any, ...]:
    """What tells a kernel from others."""
    return of.kind, tuple(sorted(of.dims.items())), of.program
