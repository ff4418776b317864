"""A policy as a torch `state_dict`: tensors under torch's names, and what describes them as JSON.

Dense layers are those of torch.nn.Sequential(Linear, ReLU or Tanh, Linear, …): `0.weight` (out,
in), `0.bias`, `2.weight`, …; a table is one torch.nn.Embedding, `0.weight` (states, actions); a
module of the user's own has its own names. The file is safetensors, without pickle:
`safetensors.torch.load_file(path)` gives what `load_state_dict` takes, and the description is the
JSON text under `pearl_policy` in the file's metadata.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pearl.files import write_atomically

if TYPE_CHECKING:
    from pearl.evaluation import Policy

SCHEMA = 1
Tensors = dict[str, npt.NDArray[Any]]


def tensors(policy: Policy) -> Tensors:
    """Name in torch → array of its own."""
    kernel, flat = policy.kernel, policy.parameters
    if kernel.dims.get("states"):
        return {"0.weight": flat.copy()}
    (name,) = kernel.networks
    own = kernel.modules.get(name)
    if own is not None:
        import torch

        from pearl_devices.primitives.torch_modules import named

        return {n: t.numpy().copy() for n, t in named(own, torch.from_numpy(flat)).items()}
    found, at = Tensors(), 0
    for layer, (i, o) in enumerate(pairwise(kernel.layers())):
        weights, at = flat[at : at + i * o], at + i * o
        found[f"{2 * layer}.weight"] = np.ascontiguousarray(weights.reshape(i, o).T)
        found[f"{2 * layer}.bias"] = flat[at : at + o].copy()
        at += o
    return found


def description(policy: Policy) -> dict[str, Any]:
    """What a program needs beside the tensors to act as the policy does.

    network: `layers` (widths, input first) and `activation`; or `module`, what built it, and the
    `inputs` it takes; or `states`. The deviations that PPO and A2C explore with are left out.
    outputs: `argmax` over the last `actions` outputs; `tanh` or
    `clip` of the first `act` ones, scaled to low … high. normalise: what observations go through
    first, (x - mean) / sqrt(variance + epsilon), clipped to ±clip (0: not), or null.
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
    chosen: dict[str, Any] = {"rule": "argmax", "actions": env.actions}
    if kernel.program is not None:
        chosen = {"rule": kernel.program}
    elif env.act:
        rule = "clip" if kernel.kind == "inference.ppo" else "tanh"
        bounds = {"low": list(env.act_low), "high": list(env.act_high)}
        chosen = {"rule": rule, "act": env.act, **bounds}
    normalise = None
    if policy.statistics is not None:
        asked, (mean, variance) = policy.system.algorithm.normalise, policy.statistics.tolist()
        scale = {"epsilon": asked.epsilon, "clip": asked.clip}
        normalise = {"mean": mean, "variance": variance, **scale}
    return {
        "schema": SCHEMA,
        "algorithm": policy.system.algorithm.name,
        "env": env.id,
        "network": network,
        "outputs": chosen,
        "normalise": normalise,
    }


def export(policy: Policy, path: str | Path) -> dict[str, Any]:
    """Write the policy to `path` (safetensors), atomically; returns its description."""
    from safetensors.numpy import save

    about = description(policy)
    text = json.dumps(about, allow_nan=False)
    write_atomically(path, save(tensors(policy), metadata={"pearl_policy": text}))
    return about
