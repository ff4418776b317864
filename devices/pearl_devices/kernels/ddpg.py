"""The kinds of DDPG, with networks actor and critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pearl_devices.kernel import Dim, Kernel
from pearl_devices.kernels import off_policy
from pearl_devices.kernels.record import Passes, primitive


def _passes(k: Kernel) -> Mapping[str, Passes]:
    # Actor: target action, current action. Critic: target value, value, value of the current
    # action.
    return {"actor": Passes(2, 1), "critic": Passes(3, 1, 1)}


def _networks(
    rng: Any, obs: int, act: int, outputs: int, hidden: tuple[int, ...]
) -> dict[str, Dim]:
    return {"actor": (obs, *hidden, outputs), "critic": (obs + act, *hidden, 1)}


_LEARN = {
    "native": primitive("updates.ddpg:bind_learn"),
    "native-pair": primitive("updates.ddpg_pair:bind_learn", cores=2),
}
INFERENCE = off_policy.inference("ddpg", stochastic=False, networks=_networks)
UPDATE = off_policy.update(
    "ddpg",
    _passes,
    variants={**_LEARN, **off_policy.TORCH, **off_policy.BFLOAT16},
    stochastic=False,
    loss_operations=18,
    example="pearl.algorithms.ddpg:losses",
    networks=_networks,
)
LEARN = off_policy.learn(UPDATE, _LEARN)
ITERATION = off_policy.iteration("actor", INFERENCE, LEARN)
