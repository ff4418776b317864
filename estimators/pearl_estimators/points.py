"""What a calibration times: kernels of every family in a few sizes, and arrays for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from pearl_devices import Buffers, Device, Kernel, backend, kernel, work
from pearl_devices.base import ASKED, Call
from pearl_devices.buffers import allocate, tree_levels
from pearl_devices.kernel import Dim

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

LOSSES = {
    name: f"pearl.algorithms.{name}:losses" for name in ("dqn", "ddpg", "td3", "sac", "ppo", "a2c")
}
"""The torch losses of the update kernels, resolved by the backend when it binds."""

# widths, batch, double
_DQN = (
    ((4, 32, 32, 2), 32, 0),
    ((4, 64, 64, 2), 64, 1),
    ((4, 64, 2), 128, 0),
    ((8, 128, 128, 4), 64, 0),
    ((4, 128, 128, 2), 256, 1),
    ((6, 256, 256, 3), 32, 1),
    ((8, 256, 256, 4), 256, 0),
    ((16, 64, 64, 64, 4), 64, 1),
)
# actor, critic, batch
_DDPG = (
    ((3, 32, 32, 1), (4, 32, 32, 1), 32),
    ((3, 64, 64, 1), (4, 64, 64, 1), 64),
    ((3, 64, 64, 1), (4, 64, 64, 1), 256),
    ((8, 128, 128, 2), (10, 128, 128, 1), 64),
    ((17, 256, 256, 6), (23, 256, 256, 1), 64),
    ((3, 256, 256, 1), (4, 256, 256, 1), 256),
    ((8, 64, 2), (10, 128, 1), 128),
    ((3, 64, 64, 64, 1), (4, 64, 64, 64, 1), 64),
)
# TD3 and SAC, with two critics: observation, action, hidden widths, batch, steps
_TWIN: tuple[tuple[int, int, tuple[int, ...], int, int], ...] = (
    (3, 1, (32, 32), 32, 2),
    (3, 1, (64, 64), 64, 4),
    (8, 2, (128, 128), 64, 2),
    (8, 2, (64,), 256, 2),
    (3, 1, (256, 256), 256, 2),
    (17, 6, (256, 256), 64, 2),
)
# PPO and A2C: environments, vector steps, observation, discrete actions, action, hidden widths,
# epochs, minibatches
_ROLLOUTS: tuple[tuple[int, int, int, int, int, tuple[int, ...], int, int], ...] = (
    (8, 32, 4, 2, 0, (32, 32), 1, 1),
    (8, 128, 4, 2, 0, (64, 64), 1, 4),
    (1, 256, 3, 0, 1, (64, 64), 1, 4),
    (4, 16, 8, 4, 0, (128, 128), 2, 1),
    (16, 8, 17, 0, 6, (64,), 2, 2),
    (32, 32, 3, 0, 1, (256, 256), 1, 8),
    (64, 16, 6, 3, 0, (64, 64, 64), 1, 2),
    (8, 8, 4, 2, 0, (64, 64), 1, 1),
)
# envs, obs, act, capacity, fanout
_STORES = (
    (1, 4, 0, 10_000, 16),
    (8, 4, 0, 50_000, 16),
    (64, 3, 1, 102_400, 16),
    (8, 17, 6, 20_000, 8),
    (16, 8, 2, 2_000, 4),
    (256, 4, 0, 51_200, 64),
)
# batch, steps, n_step
_DRAWS = ((32, 1, 1), (64, 8, 1), (256, 1, 1), (128, 2, 3), (64, 1, 3), (64, 4, 1))
_ENVS = {"CartPole-v1": (4, 0), "Pendulum-v1": (3, 1)}
_ENV_COUNTS = (1, 2, 4, 8, 16, 64)
# environments, hidden widths
_POLICIES = (
    (1, (32, 32)),
    (1, (64, 64)),
    (1, (128, 128)),
    (1, (256, 256)),
    (1, (64,)),
    (2, (32, 32)),
    (8, (64, 64)),
    (64, (64,)),
    (4, (128, 128)),
    (16, (128, 128)),
    (64, (64, 64)),
    (8, (256, 256)),
    (32, (256, 256)),
    (16, (64, 64, 64)),
)


def training() -> Iterator[Kernel]:
    """The kernels to fit on: every family that the CPU backend may have timed."""
    for program, (obs, act) in _ENVS.items():
        for envs in _ENV_COUNTS:
            yield kernel("env_step", program=program, envs=envs, obs=obs, act=act)
    for i, (envs, hidden) in enumerate(_POLICIES):
        obs, act = ((4, 2), (3, 1), (8, 4), (17, 6))[i % 4]
        for algorithm in ("dqn", "ddpg", "sac", "ppo"):
            yield _inference(algorithm, envs, obs, hidden, act)
    for i, store in enumerate(_STORES):
        yield from _replay(store, _DRAWS[i])
    for i, (layers, batch, double) in enumerate(_DQN):
        yield from _dqn(layers, batch, double, (1, 1, 4, 1, 1, 2, 1, 8)[i])
    for i, (actor, critic, batch) in enumerate(_DDPG):
        yield from _ddpg(actor, critic, batch, (1, 1, 1, 4, 1, 1, 2, 8)[i])
    for algorithm in ("td3", "sac"):
        for obs, act, hidden, batch, steps in _TWIN:
            yield from _twin(algorithm, obs, act, hidden, batch, steps)
    for rollout in _ROLLOUTS:
        yield from _rollout(*rollout)
    for params in (200, 2_000, 10_000, 40_000, 80_000, 150_000):
        yield kernel("param_sync", args={"network": "q"}, params=params)


def held_out() -> Iterator[Kernel]:
    """Kernels that no fit has seen, in sizes that users have."""
    yield kernel("env_step", program="CartPole-v1", envs=32, obs=4, act=0)
    yield kernel("env_step", program="Pendulum-v1", envs=3, obs=3, act=1)
    yield _inference("dqn", 16, 4, (64, 64), 2)
    yield _inference("dqn", 1, 6, (128, 128), 3)
    yield _inference("ddpg", 4, 3, (256, 256), 1)
    yield _inference("ddpg", 1, 8, (64, 64), 2)
    yield _inference("sac", 8, 3, (256, 256), 1)
    yield _inference("sac", 1, 6, (96, 96), 2)
    yield _inference("ppo", 8, 4, (128, 128), 2)
    yield _inference("ppo", 1, 6, (96, 96), 3)
    yield from _replay((8, 4, 0, 100_000, 16), (64, 1, 1))
    yield from _dqn((4, 64, 64, 2), 128, 1, 2)
    yield from _dqn((4, 128, 128, 2), 64, 0, 1)
    yield from _ddpg((3, 128, 128, 1), (4, 128, 128, 1), 128, 1)
    yield from _ddpg((3, 256, 256, 1), (4, 256, 256, 1), 128, 2)
    yield from _twin("td3", 3, 1, (128, 128), 128, 2)
    yield from _twin("sac", 3, 1, (128, 128), 128, 2)
    yield from _rollout(8, 64, 4, 2, 0, (64, 64), 2, 2)
    yield from _rollout(16, 16, 3, 0, 1, (128, 128), 1, 1)
    yield kernel("param_sync", args={"network": "q"}, params=20_000)


def _store(store: tuple[int, int, int, int, int], prioritised: int) -> dict[str, Dim]:
    names = ("envs", "obs", "act", "capacity", "fanout")
    return {**dict(zip(names, store, strict=True)), "prioritised": prioritised}


def _replay(store: tuple[int, int, int, int, int], draw: tuple[int, int, int]) -> Iterator[Kernel]:
    batch, steps, n_step = draw
    for prioritised in (0, 1):
        sizes = _store(store, prioritised)
        yield kernel("replay_insert", sizes)
        yield kernel("replay_sample", sizes, batch=batch, steps=steps, n_step=n_step)
    capacity, fanout = store[3:]
    yield kernel("replay_update", batch=batch, steps=steps, capacity=capacity, fanout=fanout)


def _inference(
    algorithm: str, envs: int, obs: int, hidden: tuple[int, ...], outputs: int
) -> Kernel:
    """Acting; outputs: discrete actions of DQN and PPO, components of an action of the others."""
    if algorithm == "ppo":
        actor = (obs, *hidden, outputs)
        return kernel("inference.ppo", envs=envs, obs=obs, act=0, tanh=1, actor=actor)
    if algorithm == "dqn":
        return kernel("inference.dqn", envs=envs, obs=obs, act=0, q=(obs, *hidden, outputs))
    actor = (obs, *hidden, outputs * (2 if algorithm == "sac" else 1))
    return kernel(f"inference.{algorithm}", envs=envs, obs=obs, act=outputs, actor=actor)


def _learning(algorithm: str, sizes: dict[str, Dim]) -> Iterator[Kernel]:
    """The update, and the fused call with uniform and with prioritised replay."""
    yield kernel(f"update.{algorithm}", sizes, program=LOSSES[algorithm])
    obs, act = int(str(sizes["obs"])), int(str(sizes["act"]))
    for prioritised in (0, 1):
        store = _store((8, obs, act, 50_000, 16), prioritised)
        yield kernel(f"learn.{algorithm}", {**sizes, **store}, n_step=1)


def _dqn(layers: tuple[int, ...], batch: int, double: int, steps: int) -> Iterator[Kernel]:
    sizes: dict[str, Dim] = {"q": layers, "obs": layers[0], "act": 0, "double": double}
    yield from _learning("dqn", {**sizes, "batch": batch, "steps": steps})


def _ddpg(
    actor: tuple[int, ...], critic: tuple[int, ...], batch: int, steps: int
) -> Iterator[Kernel]:
    sizes: dict[str, Dim] = {"obs": actor[0], "act": actor[-1], "batch": batch, "steps": steps}
    yield from _learning("ddpg", {"actor": actor, "critic": critic, **sizes})


def _twin(
    algorithm: str, obs: int, act: int, hidden: tuple[int, ...], batch: int, steps: int
) -> Iterator[Kernel]:
    """TD3 or SAC. Steps are a multiple of policy_delay, so that firings are alike."""
    critic = (obs + act, *hidden, 1)
    sizes: dict[str, Dim] = {"obs": obs, "act": act, "batch": batch, "steps": steps}
    own: dict[str, Dim] = {"actor": (obs, *hidden, act), "policy_delay": 2}
    if algorithm == "sac":
        own = {"actor": (obs, *hidden, 2 * act), "alpha": (0, 1)}
    yield from _learning(algorithm, {**sizes, **own, "critic1": critic, "critic2": critic})


def _rollout(
    envs: int, horizon: int, obs: int, actions: int, act: int, hidden: tuple[int, ...], epochs: int,
    minibatches: int,
) -> Iterator[Kernel]:  # fmt: skip
    """What PPO and A2C do with a rollout."""
    spaces: dict[str, Dim] = {"envs": envs, "obs": obs, "act": act, "horizon": horizon}
    actor, critic = (obs, *hidden, actions or act), (obs, *hidden, 1)
    yield kernel("rollout_insert", spaces)
    yield kernel("gae", spaces, tanh=1, critic=critic)
    learned: dict[str, Dim] = {**spaces, "tanh": 1, "actor": actor, "critic": critic}
    for name, passes, parts in (("ppo", epochs, minibatches), ("a2c", 1, 1)):
        batch = envs * horizon // parts
        sizes: dict[str, Dim] = {"epochs": passes, "batch": batch, "steps": passes * parts}
        yield kernel(f"update.{name}", {**learned, **sizes}, program=LOSSES[name])


def variants(of: Kernel) -> dict[str, int]:
    """What the CPU backend offers for a kernel on this host without being asked, and the cores it
    takes. A fused kernel on several cores is estimated from its parts."""
    offered = backend("cpu").offers(of, Device("host", "cpu", width=CORES, real=True))
    return {
        variant: cores
        for variant, cores in offered
        if variant not in ASKED and not (cores > 1 and work.parts(of))
    }


def bound(of: Kernel, variant: str) -> Call:
    """The kernel bound over arrays filled so that every firing does its full work."""
    buffers = allocate([of])
    fill(buffers, of)
    return backend("cpu").bind(of, variant, buffers)


def fill(buffers: Buffers, of: Kernel) -> None:
    """Plausible random contents: small networks' weights, a full replay, a consistent sum tree."""
    import numpy as np

    rng = np.random.default_rng(0)
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
        elif name.startswith("hyper.lr."):
            array[:] = 1e-4
        elif name.startswith("rng."):
            array[0] = 1
        elif name in ("batch.discount", "batch.weight", "batch.td"):
            array[:] = rng.uniform(0.5, 1.0, array.shape)
        elif name.endswith((".m", ".v", ".step", ".steps")):
            array[:] = 0  # Adam starts from nothing
        elif name.startswith(("learner.", "policy.")):
            array[:] = 0.08 * rng.standard_normal(array.shape)
        elif array.dtype == np.float32:
            array[:] = 0.3 * rng.standard_normal(array.shape)


def sum_tree(capacity: int, fanout: int, rng: Any) -> Any:
    """A K-ary sum tree over random priorities, root first, in the layout of `replay.tree`."""
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
