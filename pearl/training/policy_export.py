"""Export of a policy: `Policy.tensors` as safetensors, with a description as JSON. No pickle.

`safetensors.torch.load_file(path)` gives the argument of `load_state_dict`. The description is the
JSON text under `pearl_policy` in the file's metadata.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.formats import latest
from pearl_devices.buffers import specs
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.interface import changes, states, trained_arrays
from pearl_devices.primitives.envs.border import ObservationPart, too_wide

if TYPE_CHECKING:
    from pearl.training.policy import Policy


SUFFIXES = ("", ".safetensors")
"""Suffixes of files of exported policies."""


def description(policy: Policy) -> dict[str, Any]:
    """Return the description that a program needs, in addition to the tensors, to run the policy.

    network: `layers` (widths, input first) and `activation`; or `module`, the code that built it,
        and its `inputs`; or `states`. The deviations with which PPO and A2C explore are left out.
    outputs: `argmax` over the last `actions` outputs, counted from `start`; or `argmax_each` over
        the `choices` of each component in turn; or `tanh` or `clip` of the first `act` outputs,
        scaled to low … high. With `clip`, a component that lacks a bound is not scaled, only
        clipped.
    observations: the parts of an observation of the environment, in the order of the flat one. Each
        has the `path` of keys and places that leads to it, and its `shape`. If it is discrete, it
        has `choices` and `starts`, the number of choices of each element and its first number: each
        element is one-hot in the flat observation, and a table counts states from 0.
    pixels: (first, end) of the components of the flattened observation that are first divided by
        255.
    normalise: of observations, (x - mean) / sqrt(variance + epsilon), clipped to ±clip (0: not
        clipped); or null.
    interface: the custom kernels between environment and network, in order; absent without any.
        Each has `changes` (observations after `normalise`, or actions before `start` is added), the
        `function` (`module:function`) that changes an array of that name, the names of its
        `arrays`, which the file holds as `interface.NAME`, its `sizes` and its `args`.
    """
    kernel, env = policy.kernel, policy.system.env
    network: dict[str, Any]
    if kernel.dims.get("states"):
        network = {"states": kernel.dim("states")}
    else:
        (name,) = kernel.networks
        own, activation = kernel.modules.get(name), "tanh" if kernel.dims.get("tanh") else "relu"
        network = (
            {"module": own.program, "inputs": list(own.inputs), "outputs": own.outputs}
            if own
            else {"layers": list(kernel.layers()), "activation": activation}
        )
    chosen: dict[str, Any] = {"rule": "argmax", "actions": env.actions, "start": sum(env.start)}
    if kernel.program is not None:
        chosen = {"rule": kernel.program}
    elif env.choices:
        chosen = {"rule": "argmax_each", "choices": list(env.choices)}
        chosen["start"] = list(env.start or (0,) * env.act)
    elif env.act:
        rule = "clip" if "act.sample" in specs(kernel) else "tanh"
        held = {"low": env.act_low, "high": env.act_high}
        free = [
            math.isfinite(b - a) and too_wide(a, b) for a, b in zip(*held.values(), strict=True)
        ]
        bounds = {
            n: [
                b if math.isfinite(b) and not none else None
                for b, none in zip(each, free, strict=True)
            ]
            for n, each in held.items()
        }
        chosen = {"rule": rule, "act": env.act, **bounds}
    normalise = None
    if policy.statistics is not None:
        asked, (mean, variance) = policy.system.algorithm.normalise, policy.statistics.tolist()
        scale = {"epsilon": asked.epsilon, "clip": asked.clip}
        normalise = {"mean": mean, "variance": variance, **scale}
    passed = [
        {
            "changes": name,
            "function": kind_of(each).in_evaluation,
            "arrays": list(trained_arrays(each)),
            "sizes": {n: s for n, s in each.dims.items() if n != "envs"},
            "args": dict(each.args),
        }
        for each in kernel.interface
        for name in changes(each)
    ]
    return {
        "schema": latest("exported policy"),
        "algorithm": policy.system.algorithm.name,
        "env": env.id,
        "network": network,
        "outputs": chosen,
        "observations": [_described(part) for part in env.parts],
        "pixels": [list(each) for each in env.pixels],
        "normalise": normalise,
        **({"interface": passed} if passed else {}),
    }


def _described(part: ObservationPart) -> dict[str, Any]:
    found: dict[str, Any] = {"path": list(part.path), "shape": list(part.shape)}
    if part.counts:
        found |= {"choices": list(part.counts), "starts": list(part.starts)}
    return found


def export(policy: Policy, path: str | Path) -> dict[str, Any]:
    """Write the policy to `path` (safetensors), atomically; return its description.

    The arrays of custom kernels are stored as `interface.NAME`; they are not for `load_state_dict`.

    Raises:
        SpecError: the suffix of the path is that of another format.
    """
    from safetensors.numpy import save

    if (suffix := Path(path).suffix) not in SUFFIXES:
        raise SpecError(
            f"{path}: given {suffix}; a policy is written as safetensors, so allowed are "
            ".safetensors or no suffix; nothing was written"
        )
    about = description(policy)
    text = json.dumps(about, allow_nan=False)
    tensors = policy.tensors()
    for name in states(policy.kernel):
        tensors[f"interface.{name}"] = policy.states[name]
    write_atomically(path, save(tensors, metadata={"pearl_policy": text}))
    return about
