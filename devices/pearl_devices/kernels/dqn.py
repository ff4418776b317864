"""The kinds of DQN, optionally double and duelling.

Further sizes of update.dqn: double (0 or 1). Further size of both kinds: duelling (1: q has one
output more than there are actions, see `primitives.updates.dqn`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pearl_devices.kernel import Dim, Kernel
from pearl_devices.kernels import off_policy
from pearl_devices.kernels.record import Passes, primitive


def _passes(k: Kernel) -> Mapping[str, Passes]:
    return {"q": Passes(3 if k.dim("double") else 2, 1)}


def _networks(
    rng: Any, obs: int, act: int, outputs: int, hidden: tuple[int, ...]
) -> dict[str, Dim]:
    duelling = int(rng.random() < 0.3)
    more: dict[str, Dim] = {"duelling": 1} if duelling else {}
    return {"q": (obs, *hidden, outputs + duelling), **more, "double": int(rng.integers(2))}


INFERENCE = off_policy.inference("dqn", stochastic=False, actions="discrete", networks=_networks)
UPDATE = off_policy.update(
    "dqn",
    _passes,
    variants={"native": primitive("updates.dqn:bind_learn"), **off_policy.TORCH},
    stochastic=False,
    loss_operations=16,
    example="pearl.algorithms.dqn:losses",
    actions="discrete",
    networks=_networks,
    averaged=True,
)
LEARN = off_policy.learn(UPDATE, {"native": primitive("updates.dqn:bind_learn")})
ITERATION = off_policy.iteration("q", INFERENCE, LEARN)
