"""Action masks: an environment that offers one is refused, because no kernel supports masks.

Two conventions are known: `info["action_mask"]` (gymnasium's Taxi, PettingZoo) and a method
`action_masks()` (sb3-contrib). The answer of a reset is checked, the answer of a step is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

KEY, METHOD = "action_mask", "action_masks"


def refusal(name: str, info: Any, env: Any = None) -> str:
    """Return why an environment is refused, as a sentence; empty if it offers no mask.

    name: of the environment, for the sentence.
    info: the info that its reset returned.
    env: the environment; None if its methods were checked before.
    """
    offers = ""
    if isinstance(info, Mapping) and KEY in info:
        offers = f"info[{KEY!r}] at its reset"
    elif env is not None and has_method(env):
        offers = f"a method {METHOD}()"
    if not offers:
        return ""
    return (
        f"environment {name!r} offers an action mask, {offers}, and masks are not supported: "
        "actions that it calls illegal would be chosen and learned from. If it accepts such "
        "actions, name pearl_devices.masks:unmasked as env with env_args {env: "
        f"{name!r}}}, which hides the mask; else give it a wrapper of yours (`module:callable`) "
        "that turns an illegal action into a legal one and offers no mask"
    )


LIKE = re.compile(
    r"(legal|valid|avail|available|allowed|possible|illegal|invalid)_?(actions?|moves?)(_?masks?)?"
    r"|(actions?|moves?)_?masks?"
)
"""Names, in infos and observations, of what is most likely an action mask."""


def like_masks(seen: Any, info: Any) -> list[str]:
    """Return the places of what looks like an action mask in an observation or an info."""
    places = [("info", info), ("observation", seen)]
    return [
        f"{what}[{key!r}]"
        for what, each in places
        if isinstance(each, Mapping)
        for key in each
        if LIKE.fullmatch(str(key).lower())
    ]


def has_method(env: Any) -> bool:
    """Whether an environment, or one inside a vector environment, has the method."""
    if isinstance(inner := getattr(env, "env", None), VectorEnv):
        env = inner
    if not isinstance(env, VectorEnv):
        return bool(env.has_wrapper_attr(METHOD))
    if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        return any(env.unwrapped.call("has_wrapper_attr", METHOD))
    return hasattr(env, METHOD) or hasattr(env.unwrapped, METHOD)


class Unmasked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment without its action masks; it gets every action as chosen."""

    def has_wrapper_attr(self, name: str) -> bool:
        return name != METHOD and super().has_wrapper_attr(name)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The environment's reset; info has no mask."""
        seen, info = super().reset(seed=seed, options=options)
        return seen, _without(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The environment's step; info has no mask."""
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward, terminated, truncated, _without(info)


def _without(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != KEY}


def unmasked(env: str, **args: Any) -> gymnasium.Env[Any, Any]:
    """Make the environment `env` (an id of gymnasium, or `module:callable`) with `args`, without
    its action masks.

    Raises:
        ValueError: it cannot be made.
    """
    from pearl_devices.user_imports import CALLABLE, make_environment

    options = {} if CALLABLE.fullmatch(env) else {"disable_env_checker": True}
    return Unmasked(make_environment(env, args, **options))
