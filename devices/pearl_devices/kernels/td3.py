"""The kinds of TD3, with networks actor, critic1 and critic2. The actor acts as that of DDPG.

A further size: policy_delay, gradient steps of the critics per step of actor and targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pearl_devices.kernel import Dim, Kernel
from pearl_devices.kernels import ddpg, off_policy
from pearl_devices.kernels.record import Passes, primitive


def _passes(k: Kernel) -> Mapping[str, Passes]:
    late = 1 / k.dim("policy_delay")  # actor and targets take one step in policy_delay
    return {
        "actor": Passes(1 + late, late, adam=late, follow=late),
        "critic1": Passes(2 + late, 1, late, follow=late),
        "critic2": Passes(2, 1, follow=late),
    }


def _networks(
    rng: Any, obs: int, act: int, outputs: int, hidden: tuple[int, ...]
) -> dict[str, Dim]:
    critic = (obs + act, *hidden, 1)
    twin: dict[str, Dim] = {"critic1": critic, "critic2": critic}
    return {"actor": (obs, *hidden, outputs), **twin, "policy_delay": 2}


_LEARN = {
    "native": primitive("updates.td3:bind_learn"),
    "native-pair": primitive("updates.td3_pair:bind_learn", cores=2),
}
UPDATE = off_policy.update(
    "td3",
    _passes,
    variants={**_LEARN, **off_policy.TORCH, **off_policy.BFLOAT16},
    hyper={"smoothing": 2},
    period="policy_delay",
    loss_operations=32,
    example="pearl.algorithms.td3:losses",
    networks=_networks,
)
LEARN = off_policy.learn(UPDATE, _LEARN)
ITERATION = off_policy.iteration("actor", ddpg.INFERENCE, LEARN)
