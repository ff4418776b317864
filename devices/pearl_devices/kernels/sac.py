"""The kinds of SAC: networks actor (2·A outputs), critic1, critic2 and alpha, a constant (0, 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pearl_devices.kernel import Dim, Kernel
from pearl_devices.kernels import off_policy
from pearl_devices.kernels.record import Passes, primitive


def _passes(k: Kernel) -> Mapping[str, Passes]:
    return {
        "actor": Passes(2, 1, follow=0, target=False),
        "critic1": Passes(3, 1, 1),
        "critic2": Passes(3, 1, 1),
        "alpha": Passes(0, 0, follow=0, target=False),
    }


def _networks(
    rng: Any, obs: int, act: int, outputs: int, hidden: tuple[int, ...]
) -> dict[str, Dim]:
    critic = (obs + act, *hidden, 1)
    twin: dict[str, Dim] = {"critic1": critic, "critic2": critic}
    return {"actor": (obs, *hidden, 2 * outputs), **twin, "alpha": (0, 1)}


_LEARN = {
    "native": primitive("updates.sac:bind_learn"),
    "native-pair": primitive("updates.sac_pair:bind_learn", cores=2),
}
INFERENCE = off_policy.inference("sac", networks=_networks)
UPDATE = off_policy.update(
    "sac",
    _passes,
    variants={**_LEARN, **off_policy.TORCH, **off_policy.BFLOAT16},
    hyper={"target_entropy": 1},
    loss_operations=60,
    # Clamp, deviation, density and squashed action of a sample, and their gradients.
    actor_operations=30,
    example="pearl.algorithms.sac:losses",
    networks=_networks,
)
LEARN = off_policy.learn(UPDATE, _LEARN)
ITERATION = off_policy.iteration("actor", INFERENCE, LEARN)
