"""Spaces of an environment: from the spec, or from gymnasium (imported on use)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pearl.algorithms.options import Acting, Deep, RolloutOptions
from pearl.algorithms.spaces import Spaces
from pearl.algorithms.tabular_options import TabularOptions
from pearl.spec.messages import Complaint, suggest_nearest
from pearl.spec.system import EnvSpec
from pearl.spec.yaml_reader import Where, show
from pearl.waits import naming
from pearl_devices.primitives.envs.border import (
    WIDEST,
    ObservationPart,
    in_float32,
    reset,
    size_of,
    too_wide,
)
from pearl_devices.user_imports import error_text, make_environment


def env_spec(algorithm: Acting, actions: str = "both") -> tuple[EnvSpec | None, list[Complaint]]:
    """Return the environment of `algorithm`, or its problems."""
    where: Where = ("algorithm", "env")
    if algorithm.spaces is not None:
        env, problems = _given(algorithm, algorithm.spaces)
        where = ("algorithm", "spaces")
    else:
        env, problems = _asked(algorithm)
    if env is not None and actions not in ("both", "discrete" if env.actions else "continuous"):
        has = f"{env.actions} discrete actions" if env.actions else "continuous actions"
        has = f"actions of {len(env.choices)} discrete components" if env.choices else has
        problems = [(where, f"{algorithm.env} has {has}; {algorithm.name} needs {actions} ones")]
    stack = algorithm.frame_stack if isinstance(algorithm, Deep) else 0
    if env is not None and stack and env.obs % stack:
        what = f"given {stack}; obs ({env.obs}) must be the size of a whole stack, a multiple of it"
        problems = [*problems, (("algorithm", "frame_stack"), what)]
    elif env is not None:
        env = replace(env, stack=stack)
        problems = [*problems, *((where, what) for what in _find_unfit_actions(algorithm, env))]
    tabular = isinstance(algorithm, TabularOptions)
    if env is not None and not problems and tabular and not env.states:
        what = f"{algorithm.env} has no discrete observations; {algorithm.name} needs them"
        problems = [(where, f"{what}: its table has a row for each observation")]
    return env, problems


def _find_unfit_actions(algorithm: Acting, env: EnvSpec) -> Iterator[str]:
    """Yield the reasons why an algorithm does not support the environment's actions."""
    if isinstance(algorithm, RolloutOptions):
        return
    others = "ppo and a2c take them"
    if env.choices:
        yield (
            f"{algorithm.env} has actions of {len(env.choices)} discrete components; "
            f"{algorithm.name} needs one number or a Box; {others}"
        )
        return
    wide = [
        k for k, pair in enumerate(zip(env.act_low, env.act_high, strict=True)) if too_wide(*pair)
    ]
    if wide:
        finite = math.isfinite(env.act_low[wide[0]]) and math.isfinite(env.act_high[wide[0]])
        which = f"bounds that are more than {WIDEST:.3g} apart, too far for float32"
        yield (
            f"{algorithm.env} has actions {f'with {which}' if finite else 'without bounds'} "
            f"({list(env.act_low)} to {list(env.act_high)}); {algorithm.name} acts between bounds: "
            f"give it a Box with bounds by a wrapper of yours (`module:callable`), or {others}"
        )


def is_unknown_env(env: str) -> list[Complaint]:
    """Return whether gymnasium lacks an id; used if the rest of the section is wrong anyway."""
    import gymnasium

    if ":" in env or env in gymnasium.registry:
        return []
    try:
        gymnasium.spec(env)
    except gymnasium.error.Error:
        known = f"gymnasium knows {len(gymnasium.registry)} ids, and `module:callable` is allowed"
        what = f"no environment {show(env)}{suggest_nearest(env, gymnasium.registry)}; {known}"
        if env.startswith("ALE/") or "NoFrameskip-" in env:
            what += f"; Atari games come with `pip install ale-py`, as {show(f'ale_py:{env}')}"
        return [(("algorithm", "env"), what)]
    return []


def _reset_info(env: Any) -> Any:
    """Return the info of an environment's reset; empty if the reset fails.

    Binding the environment later reports such a failure with its number and step.
    """
    try:
        return reset(env)[1]
    except Exception:  # the environment's code may raise anything
        return {}


def find_misstatements(algorithm: Acting, stated: EnvSpec) -> list[Complaint]:
    """Build the environment, and yield the differences between it and the spec."""
    env, problems = _asked(algorithm)
    for key in ("obs", "actions", "act", "choices", "start", "states", "states_start"):
        given, has = (_size(each, key) for each in (stated, env))
        if env is not None and given != has:
            what = f"given {key} {given}; {algorithm.env} has {has}"
            problems = [*problems, (("algorithm", "spaces"), what)]
    return problems


def _size(env: EnvSpec | None, key: str) -> Any:
    if key == "states_start":
        return env.parts[0].starts if env is not None and env.states else ()
    return getattr(env, key, None)


def _given(algorithm: Acting, spaces: Spaces) -> tuple[EnvSpec | None, list[Complaint]]:
    where: Where = ("algorithm", "spaces")
    if bool(spaces.obs) == bool(spaces.states):
        given = f"obs {spaces.obs}, states {spaces.states}"
        return None, [(where, f"given {given}; exactly one of the two must be above 0")]
    shape, obs = spaces.shape or (), spaces.obs or spaces.states
    if shape and math.prod(shape) != obs:
        what = f"given {list(shape)}; its product is {math.prod(shape)}, and obs is {obs}"
        return None, [((*where, "shape"), f"{what}; they must be equal")]
    if spaces.states_start and not spaces.states:
        what = f"given states_start {spaces.states_start} without states; leave it out"
        return None, [(where, what)]
    choices = spaces.choices or ()
    if (spaces.actions > 0) + (spaces.act > 0) + bool(choices) != 1:
        given = f"actions {spaces.actions}, act {spaces.act}, choices {list(choices)}"
        return None, [(where, f"given {given}; exactly one of them is needed")]
    low, high = spaces.low, spaces.high
    if spaces.act and spaces.start:
        what = f"given start {spaces.start}; continuous actions have no first number; leave it out"
        return None, [(where, what)]
    if not spaces.act:
        if low is not None or high is not None:
            return None, [(where, "given low or high; discrete actions have no bounds")]
        low = high = ()
    else:
        low, high = low or (-math.inf,), high or (math.inf,)
        low, high = (b * spaces.act if len(b) == 1 else b for b in (low, high))
        low, high = (tuple(in_float32(b) for b in bound) for bound in (low, high))
        if not len(low) == len(high) == spaces.act:
            sizes = f"{len(low)} lower and {len(high)} upper bounds"
            return None, [(where, f"given {sizes}; {spaces.act} each are needed, or one for all")]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return None, [(where, "a lower bound is not below its upper bound; it must be")]
    return (
        EnvSpec(
            algorithm.env,
            algorithm.env_args,
            obs,
            shape,
            spaces.states,
            spaces.actions,
            spaces.act or len(choices),
            low,
            high,
            spaces.max_episode_steps,
            choices=choices,
            start=(spaces.start,) * max(len(choices), 1) if spaces.start else (),
            parts=(ObservationPart((), (), (obs,), (spaces.states_start,)),)
            if spaces.states
            else (),
        ),
        [],
    )


def _asked(algorithm: Acting) -> tuple[EnvSpec | None, list[Complaint]]:
    import gymnasium

    from pearl_devices.masks import refusal
    from pearl_devices.primitives.envs.spaces import (
        UnknownSpaceError,
        choices,
        parts,
        pixels,
        starts,
        units,
    )

    where: Where = ("algorithm", "env")
    unknown = is_unknown_env(algorithm.env)
    if unknown:
        return None, unknown
    asked = f"environment {show(algorithm.env)}, which is made and reset to see its spaces,"
    try:
        with naming(asked, "Ctrl-C ends the command"):
            env = make_environment(algorithm.env, algorithm.env_args)
            observation, action = env.observation_space, env.action_space
            cut = env.spec.max_episode_steps if env.spec is not None else None
            threshold = env.spec.reward_threshold if env.spec is not None else None
            masked = refusal(algorithm.env, _reset_info(env), env)
            env.close()
    except (Exception, SystemExit) as error:  # the environment's code may raise anything
        return None, [(where, f"{show(algorithm.env)} cannot be built: {error_text(error)}")]
    if masked:
        return None, [(where, masked)]
    box, discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete
    try:
        found = parts(observation)
    except UnknownSpaceError as error:
        return None, [(where, f"{show(algorithm.env)}: {error}")]
    sizes: dict[str, Any] = {"obs": size_of(found)}
    stack = algorithm.frame_stack if isinstance(algorithm, Deep) else 0
    if stack and not (isinstance(observation, box) and str(observation.dtype) == "uint8"):
        what = f"given {stack}; {show(algorithm.env)} observes {observation}, and frames are a Box"
        return None, [(("algorithm", "frame_stack"), f"{what} of uint8; leave it at 0")]
    if stack and _is_stacked(observation.shape, stack):
        what = f"given {stack}; {show(algorithm.env)} observes {list(observation.shape)}, which is "
        what += f"already a stack of {stack} frames and would be stacked twice; leave it at 0"
        what += ", or remove the wrapper that stacks frames from the environment"
        return None, [(("algorithm", "frame_stack"), what)]
    if isinstance(observation, box):
        sizes["shape"] = tuple(int(extent) for extent in observation.shape)
    elif isinstance(observation, discrete):
        sizes["states"] = int(observation.n)
    if stack:
        sizes = {"obs": stack * sizes["obs"], "shape": (stack, *sizes["shape"])}
        found = (ObservationPart((), sizes["shape"]),)
    if isinstance(action, discrete):
        sizes["actions"] = int(action.n)
    elif factored := choices(action):
        sizes |= {"act": len(factored), "choices": factored}
    elif isinstance(action, box) and len(action.shape) == 1 and action.shape[0]:
        bounds = (action.low, action.high)
        low, high = (tuple(in_float32(float(b)) for b in bound) for bound in bounds)
        if not all(a < b for a, b in zip(low, high, strict=True)):
            what = f"the action's bounds are {list(low)} and {list(high)}"
            return None, [(where, f"{what}; each lower bound must be below its upper bound")]
        sizes |= {"act": action.shape[0], "act_low": low, "act_high": high}
    else:
        allowed = "Discrete, MultiDiscrete, MultiBinary or a Box of one axis is needed"
        return None, [(where, f"actions are {action}; {allowed}")]
    sizes["start"] = starts(action)
    own = isinstance(algorithm, Deep) and algorithm.network is not None
    if not stack and not (own and isinstance(observation, box)):
        sizes["pixels"] = pixels(observation)
    sizes["parts"] = found
    sizes["units"] = units(observation, sizes.get("pixels", ()))
    sizes["note"] = _describe_flattening(observation, sizes.get("pixels", ()))
    sizes |= {"max_episode_steps": cut, "threshold": threshold}
    spec = EnvSpec(algorithm.env, algorithm.env_args, **sizes)
    return spec, []


def _is_stacked(shape: tuple[int, ...], stack: int) -> bool:
    """Return whether observations of this shape are stacks of `stack` frames on the first axis.

    Images with one channel may be stacked along the last axis; three channels there are colours.
    """
    colours = stack == 3 and len(shape) == 3
    return len(shape) >= 3 and not colours and stack in (shape[0], shape[-1])


def _describe_flattening(space: Any, scaled: tuple[tuple[int, int], ...]) -> str:
    """Describe how observations become vectors; empty for plain vectors."""
    import gymnasium

    said = []
    if isinstance(space, gymnasium.spaces.Dict):
        sizes = [f"{name} ({gymnasium.spaces.utils.flatdim(each)})" for name, each in space.items()]
        said.append(f"observations are flattened into one vector, in order {', '.join(sizes)}")
    elif isinstance(space, gymnasium.spaces.Tuple):
        said.append("observations are flattened into one vector, as gymnasium flattens Tuple")
    if scaled:
        numbers = sum(end - first for first, end in scaled)
        said.append(f"{numbers:,} pixels of images are scaled from 0 … 255 to 0 … 1")
    return "; ".join(said)
