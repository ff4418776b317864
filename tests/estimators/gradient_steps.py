"""Gradient steps of every algorithm in the sizes that users have, and larger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pearl_devices import Kernel, kernel

WIDTHS, BATCHES = (16, 64, 256, 1024), (1, 64, 1024, 65_536)


def gradient_steps() -> Iterator[Kernel]:
    """One step of each algorithm at each width of two layers and each batch."""
    for width in WIDTHS:
        for batch in BATCHES:
            yield from _of(width, batch)


def _of(width: int, batch: int) -> Iterator[Kernel]:
    hidden = (width, width)
    actor, critic = (11, *hidden, 3), (14, *hidden, 1)
    sizes: dict[str, Any] = {"obs": 11, "act": 3, "batch": batch, "steps": 1}
    twins: dict[str, Any] = {"critic1": critic, "critic2": critic}
    rollout: dict[str, Any] = {"epochs": 1, "tanh": 1, "horizon": batch, "envs": 1}
    nets: dict[str, dict[str, Any]] = {
        "dqn": {"act": 0, "double": 1, "q": (11, *hidden, 4)},
        "ddpg": {"actor": actor, "critic": critic},
        "td3": {"steps": 2, "policy_delay": 2, "actor": actor, **twins},
        "sac": {"actor": (11, *hidden, 6), "alpha": (0, 1), **twins},
        "ppo": {**rollout, "actor": actor, "critic": (11, *hidden, 1)},
        "a2c": {**rollout, "actor": actor, "critic": (11, *hidden, 1)},
    }
    for name, more in nets.items():
        program = f"pearl.algorithms.{name}:losses"
        yield kernel(f"update.{name}", {**sizes, **more}, program=program)
