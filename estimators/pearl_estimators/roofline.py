"""Datasheet roofline: overhead + max(flops / rate, bytes / bandwidth), for devices nobody timed.

Kernels of deep reinforcement learning stay below 1e8 flop, where the overhead of launches and calls
decides: without it a datasheet roofline is 75-96 % off (dense layers below 1e8 flop on V100, A100 and
P100, timings published with NeuSight, ASPLOS 2025). With the right overhead the same layers lie within
a factor of 2, so the band here is mostly doubt about the overhead.
"""

from __future__ import annotations

from dataclasses import dataclass

from pearl_devices import Device, Kernel
from pearl_devices.work import tree_depth
from pearl_estimators.estimate import Bound, Estimate

NATIVE_CALL_S = 2e-6  # measured by this project, EPYC Zen 4, 2026: an empty call with 40 arrays 1.9 us
TORCH_OP_S = 5e-6  # measured by this project, EPYC Zen 4, 2026: 5-10 us an eager operation
RANDOM_ACCESS_S = 25e-9  # one dependent access between L2 and DRAM; a tree draw of 5 levels: 137 ns,
# measured by this project, EPYC Zen 4, 2026

# A vector step through Python, and each environment in it: measured by this project, EPYC Zen 4, 2026
# (8 environments: vector entry point 38 us, sync 62 us; 1 environment: 37 us and 14 us).
NATIVE_ENV_S = (1e-6, 0.1e-6)
VECTOR_ENTRY_S = {"CartPole-v1": (37e-6, 0.1e-6)}
SYNC_ENV_S = {"Pendulum-v1": (7e-6, 12e-6)}
UNKNOWN_ENV_S = (7e-6, 60e-6)  # middle of 7 us (classic control) to 1 ms (Ant) an environment step


@dataclass(frozen=True)
class Band:
    """The 90 % band of a latency: latency / below to latency · above."""

    below: float
    above: float


KERNEL_BAND = Band(2.0, 3.0)  # 0.53-1.15 of the truth with known overhead; the overhead is assumed
ACCESS_BAND = Band(3.0, 3.0)  # assumed: caches decide
KNOWN_ENV_BAND = Band(2.0, 3.0)  # the same program, another machine: assumed
UNKNOWN_ENV_BAND = Band(8.0, 16.0)  # the spread of environments behind UNKNOWN_ENV_S


def _dense(layers: tuple[int, ...]) -> int:
    return len(layers) - 1


def _forward(depth: int) -> int:
    return 2 * depth - 1  # a product with bias each layer, an activation between layers


def _backward(depth: int, *, inputs: bool = False) -> int:
    # gradient of weights and biases each layer; of its input and activation between layers
    return 2 * depth + 2 * (depth - 1) + int(inputs)


_LOSS = 14  # gather, target, difference, Huber, weight, mean, |td|, and their gradients
_OPTIMISER = 10  # Adam on one flat vector: two moments, corrections, root, quotient, step
_COPY_IN = 7  # the arrays of a batch
_TARGET = 2


def launches(kernel: Kernel, variant: str) -> int:
    """How many operations one firing starts: 1 where a variant is one compiled call.

    For eager torch, counted from the algorithm: forward passes, backward passes, loss, optimiser and
    target of every gradient step.
    """
    if variant != "torch" or kernel.kind == "param_sync":
        return 1
    if kernel.kind.startswith("inference."):
        return _forward(_dense(kernel.layers())) + 6  # choice or noise, clip, copy out
    if kernel.kind == "update.ddpg":
        actor, critic = _dense(kernel.layers("actor")), _dense(kernel.layers("critic"))
        passes = 2 * (_forward(actor) + 2) + 3 * (_forward(critic) + 1)  # tanh and bounds; join
        passes += _backward(critic) + _backward(critic, inputs=True) + _backward(actor)
        once = _COPY_IN + passes + 2 * (_LOSS + _OPTIMISER + _TARGET)
        return kernel.dim("steps") * once
    if kernel.kind.startswith("update."):
        depth = _dense(kernel.layers())
        forwards = 3 if kernel.dim("double") else 2
        once = _COPY_IN + forwards * _forward(depth) + _backward(depth)
        return kernel.dim("steps") * (once + _LOSS + _OPTIMISER + _TARGET)
    return 8  # assumed: a replay operation written with whole-array operations


def accesses(kernel: Kernel) -> float:
    """Accesses to replay of one firing that each wait for the one before, or for a random row."""
    dims = kernel.dims
    draws = float(kernel.dim("batch") * kernel.dim("steps")) if "batch" in dims else 0.0
    levels = tree_depth(kernel) if "fanout" in dims else 0
    prioritised = bool(dims.get("prioritised", kernel.kind == "replay_update"))
    if kernel.kind == "replay_insert":
        return kernel.dim("envs") * (1.0 + levels * prioritised)
    if kernel.kind == "replay_update":
        return draws * levels
    if kernel.kind == "replay_sample":
        return draws * (kernel.dim("n_step") + levels * prioritised)
    if kernel.kind.startswith("learn."):
        return draws * (kernel.dim("n_step") + 2.0 * levels * prioritised)
    return 0.0


def overhead_s(kernel: Kernel, device: Device, variant: str) -> float:
    """Seconds that one firing spends in starting its operations.

    Launches times `Device.overhead_s`, or where a CPU's platform file leaves that 0, times the cost
    of a compiled call or of an eager torch operation.
    """
    default = 0.0
    if device.kind == "cpu":
        default = TORCH_OP_S if variant == "torch" else NATIVE_CALL_S
    return launches(kernel, variant) * (device.overhead_s or default)


def _of_terms(
    overhead: float, compute: float, memory: float, band: Band, source: str
) -> Estimate:
    latency = overhead + max(compute, memory)
    bound: Bound = "compute" if compute >= memory else "memory"
    if overhead >= max(compute, memory):
        bound = "overhead"
    return Estimate(
        latency,
        low_s=latency / band.below,
        high_s=latency * band.above,
        rung="datasheet",
        bound_by=bound,
        source=source,
    )


def _env_step(kernel: Kernel, variant: str) -> Estimate:
    program, envs = kernel.program or "", kernel.dim("envs")
    band, how = KNOWN_ENV_BAND, f"{program} on another machine"
    if variant == "native":
        call_s, each_s = NATIVE_ENV_S
    elif program in VECTOR_ENTRY_S:
        call_s, each_s = VECTOR_ENTRY_S[program]
    elif program in SYNC_ENV_S:
        call_s, each_s = SYNC_ENV_S[program]
    else:
        (call_s, each_s), band = UNKNOWN_ENV_S, UNKNOWN_ENV_BAND
        how = f"{program or 'an environment'} never timed"
    source = f"a call {call_s:.2g} s + {each_s:.2g} s an environment; {how}"
    return _of_terms(call_s, envs * each_s, 0.0, band, source)


def roofline(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """The datasheet rung: overhead_s + max(flops / (peak · width share), bytes / bandwidth).

    Replay on a CPU waits for memory rather than moves it: there the memory term is at least the
    number of dependent accesses times RANDOM_ACCESS_S. Environments are not counted in flops; they
    cost a call and a time each.
    """
    if kernel.kind == "env_step":
        return _env_step(kernel, variant)
    rate = device.peak_flops_per_s * width / device.width
    memory = (kernel.bytes_in + kernel.bytes_out) / device.memory_bytes_per_s
    band, waits = KERNEL_BAND, accesses(kernel) if device.kind == "cpu" else 0.0
    if waits * RANDOM_ACCESS_S > memory:
        memory, band = waits * RANDOM_ACCESS_S, ACCESS_BAND
    return _of_terms(
        overhead_s(kernel, device, variant),
        kernel.flops / rate,
        memory,
        band,
        f"roofline: {launches(kernel, variant)} launches + max(flops / rate, bytes / bandwidth) of "
        f"{device.model or device.name}; band assumed",
    )
