"""Small kernels of every kind that loops contain, with filled arrays, for checking a device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pearl_devices.base import Buffers
from pearl_devices.buffers import allocate
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import KINDS
from pearl_devices.kernels import kernel as counted
from pearl_devices.kernels.counting import parameters

ENVS, BATCH, STEPS, HORIZON, CAPACITY = 8, 32, 4, 8, 256
"""Environments, batch rows, gradient steps per firing, vector steps of a rollout, replay rows."""

LEARNT = ("learner.", "learners.", "policy.", "gradient.", "mean.")
"""Prefixes of the names of arrays as large as networks."""

DRAWS: dict[str, Any] = {"batch": BATCH, "steps": STEPS}
DISCRETE: dict[str, Any] = {"envs": ENVS, "obs": 4, "act": 0}
CONTINUOUS: dict[str, Any] = {"envs": ENVS, "obs": 3, "act": 1}


def _learning(kind: str, **sizes: Any) -> Kernel:
    return counted(kind, program=KINDS[kind].example, **sizes)


def _replayed(spaces: dict[str, Any], env: str, *, prioritised: int) -> tuple[Kernel, ...]:
    ring = {**spaces, "capacity": CAPACITY, "prioritised": prioritised, "fanout": 4}
    return (
        counted("env_step", program=env, **spaces),
        counted("replay_insert", **ring),
        counted("replay_sample", n_step=2, **ring, **DRAWS),
    )


def _synced(**networks: tuple[int, ...]) -> Kernel:
    sizes = {name: parameters(layers) for name, layers in networks.items()}
    return counted("param_sync", params=sum(sizes.values()), args={"network": "+".join(sizes)})


def loops() -> tuple[tuple[Kernel, ...], ...]:
    """The kernels of small training loops, in the order of their firings."""
    q, bare = (4, 64, 64, 2), dict[str, Any](obs=4, act=0)
    q_learning = (
        counted("inference.dqn", q=q, **DISCRETE),
        *_replayed(DISCRETE, "CartPole-v1", prioritised=1),
        _learning("update.dqn", q=q, double=1, **bare, **DRAWS),
        counted("replay_update", capacity=CAPACITY, fanout=4, **DRAWS),
        _synced(q=q),
    )
    actor, critic, both = (3, 64, 64, 1), (4, 64, 64, 1), dict[str, Any](obs=3, act=1)
    drawn = (3, 64, 64, 2)
    two: dict[str, Any] = {"critic1": critic, "critic2": critic}
    actor_critics = (
        counted("inference.ddpg", actor=actor, **CONTINUOUS),
        *_replayed(CONTINUOUS, "Pendulum-v1", prioritised=0),
        _learning("update.ddpg", actor=actor, critic=critic, **both, **DRAWS),
        _synced(actor=actor),
    )
    twins = (_learning("update.td3", **two, actor=actor, policy_delay=2, **both, **DRAWS),)
    entropy = (
        counted("inference.sac", actor=drawn, **CONTINUOUS),
        _learning("update.sac", **two, actor=drawn, alpha=(0, 1), **both, **DRAWS),
    )
    return (
        q_learning,
        actor_critics,
        twins,
        entropy,
        _rollout("update.ppo", 2),
        _rollout("update.a2c", 1),
        _logged(),
    )


def _logged() -> tuple[Kernel, ...]:
    sizes = {"states": 16, "actions": 4, "obs": 1, "act": 0, "bits": 0, "order": 0}
    whole = {**sizes, "batch": CAPACITY, "chunks": ENVS}
    return counted("offline.q_learning", whole), counted("offline.average", whole)


def _rollout(kind: str, epochs: int) -> tuple[Kernel, ...]:
    actor, critic = (4, 64, 64, 2), (4, 64, 64, 1)
    rows = ENVS * HORIZON
    batch = rows // epochs
    acting = {**DISCRETE, "tanh": 1}
    judged = {**acting, "horizon": HORIZON}
    return (
        counted("inference.ppo", actor=actor, **acting),
        counted("env_step", program="CartPole-v1", **DISCRETE),
        counted("rollout_insert", horizon=HORIZON, **DISCRETE),
        counted("gae", critic=critic, **judged),
        _learning(
            kind,
            **judged,
            actor=actor,
            critic=critic,
            epochs=epochs,
            batch=batch,
            steps=epochs * (rows // batch),
        ),
    )


def fill_arrays(kernels: Iterable[Kernel], seed: int = 0) -> Buffers:
    """The arrays of `kernels`, filled from `seed` with contents that every kernel can use."""
    from pearl_devices.primitives.math.rng import key

    buffers = allocate(kernels)
    random = np.random.default_rng(seed)
    fixed = {
        "explore": (1.0, 0.1, 100.0, 16.0),
        "replay.beta": (0.4, 1.0, 50.0),
        "replay.priority": (0.6, 1e-2, 1.0),
        "hyper.adam": (0.9, 0.999, 1e-8),
        "hyper.tau": 0.01,
        "hyper.discount": 0.97,
        "hyper.smoothing": (0.2, 0.3),
        "hyper.target_entropy": -1.0,
        "act.low": -2.0,
        "act.high": 2.0,
    }
    for name, array in sorted(buffers.items()):
        if name in fixed:
            array[:] = fixed[name]
        elif name.startswith("rng."):
            array[:] = (key(seed, name), 0)
        elif name.startswith("hyper.lr"):
            array[:] = 1e-3
        elif name.endswith(".v"):
            array[:] = random.uniform(0, 1e-3, array.shape)
        elif name == "batch.weight":
            array[:] = random.uniform(0.2, 1.0, array.shape)
        elif name == "batch.discount":
            array[:] = 0.97 * (random.random(array.shape) < 0.8)
        elif name.startswith(LEARNT) and array.dtype == np.float32:
            array[:] = random.normal(0, 0.2, array.shape)
        elif name.startswith(("batch.", "step.")) and array.dtype == np.float32:
            array[:] = random.normal(0, 1.0, array.shape)
        elif name == "batch.action":
            array[:] = random.integers(0, 2, array.shape)
    return buffers
