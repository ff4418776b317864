"""Datasheet roofline: overhead + max(flops / rate, bytes / bandwidth), for devices nobody timed.

Kernels of deep reinforcement learning stay below 1e8 flop, where the overhead of launches and calls
decides: without it a datasheet roofline is 75-96 % off (dense layers below 1e8 flop on V100, A100
and P100, timings published with NeuSight, ASPLOS 2025). With the right overhead 90 % of the same
layers are predicted within 12 %, so the band here is doubt about the overhead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pearl_devices import Device, Kernel
from pearl_devices.work import passes, passes_assumed
from pearl_estimators.estimates import Bound, Estimate

ROOFLINE = "roofline"
"""First word of the source of every estimate by a roofline."""

# Measured by this project, EPYC, 2026: an empty compiled call with 40 arrays takes 1.9 us; an eager
# torch operation 1 us without and 4 us with gradients; a draw from a tree over 100,000 rows, which
# is 17 decisions, 137 ns.
NATIVE_CALL_S = 2e-6
TORCH_OP_S, TORCH_GRADIENT_OP_S = 1e-6, 4e-6
SERIAL_STEP_S = 8e-9

# A vector step through Python, and each environment in it: from the same measurements
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


KERNEL_BAND = Band(2.0, 3.0)  # assumed: what launches cost differs by host and library
ACCESS_BAND = Band(3.0, 3.0)  # assumed: caches decide
KNOWN_ENV_BAND = Band(2.0, 3.0)  # the same program, another machine: assumed
UNKNOWN_ENV_BAND = Band(8.0, 16.0)  # the spread of environments behind UNKNOWN_ENV_S


def _forward(layers: tuple[int, ...]) -> int:
    """A product with bias each layer, an activation between two."""
    return 2 * (len(layers) - 1) - 1


def _backward(layers: tuple[int, ...]) -> int:
    """Gradient of weights and of biases each layer; of input and activation between two."""
    return 2 * (len(layers) - 1) + 2 * (len(layers) - 2)


_OPTIMISER = 10  # Adam on one flat vector, and reading the loss
_TARGET, _COPY_OUT, _JOIN = 1, 1, 1
_SQUASH = 6  # tanh, scaled to the bounds
_ADD_VALUE, _ADD_VALUE_BACK = 3, 7  # mean, sum and difference of a duelling network
_DRAW = 30  # SAC: clamp, deviation, density and squashed action of a sample, and their gradients
_ADVANTAGES, _TRACE = 17, 4  # generalised advantages: of a rollout, and of each of its steps
_ROW = 7  # copies that store one vector step
_LOSS = {"dqn": 16, "ddpg": 18, "td3": 32, "sac": 60, "ppo": 78, "a2c": 50}
# By algorithm: choice, gather, target, Huber, weight, mean, |td|, and their gradients.
_LOSS_ASSUMED = 16  # of each network of an algorithm that nobody has counted


def _gradient_step(kernel: Kernel) -> float:
    """Operations that eager torch starts in one gradient step, on average."""
    algorithm = kernel.kind.partition(".")[2]
    runs = passes(kernel)
    once = float(_COPY_OUT + _LOSS.get(algorithm, _LOSS_ASSUMED * len(runs)))
    for name, p in runs.items():
        layers = kernel.layers(name)
        ahead, back = _forward(layers), _backward(layers)
        if name in kernel.modules:  # assumed: two gradients a layer, an operation each
            ahead = kernel.modules[name].operations
            back = 2 * ahead
        once += p.forward * ahead + p.backward * back
        once += p.through * ahead  # gradient of input and activation, layer by layer
        once += p.adam * _OPTIMISER + p.follow * _TARGET
        if name == "q" and kernel.dims.get("duelling"):
            once += p.forward * _ADD_VALUE + _ADD_VALUE_BACK
        elif name.startswith("critic"):
            once += p.forward * _JOIN
        elif name == "actor":
            once += p.forward * (_DRAW if algorithm == "sac" else _SQUASH)
    return once


def launches(kernel: Kernel, variant: str) -> float:
    """How many operations one firing starts: 1 where a variant is one compiled call.

    For eager torch, counted from the algorithm: forward passes, backward passes, loss, optimiser
    and target of every gradient step. The tests count what torch dispatches.
    """
    if not variant.startswith("torch"):
        return 1
    if kernel.kind.startswith("inference."):
        own = next(iter(kernel.modules.values()), None)
        return (own.operations if own else _forward(kernel.layers())) + _COPY_OUT
    if kernel.kind.startswith("update."):
        return kernel.dim("steps") * _gradient_step(kernel)
    if kernel.kind == "gae":
        return 2 * _forward(kernel.layers()) + _ADVANTAGES + _TRACE * kernel.dim("horizon")
    if kernel.kind == "rollout_insert":
        return _ROW
    return 1  # param_sync: one copy


def accesses(kernel: Kernel) -> float:
    """Steps of replay that each wait for the one before: rows fetched and decisions in the tree.

    A draw from a tree over C rows takes log2(C) decisions whatever the fanout; so does writing a
    priority. A row lies anywhere in memory.
    """
    dims = kernel.dims
    draws = float(kernel.dim("batch") * kernel.dim("steps")) if "batch" in dims else 0.0
    decisions = math.log2(kernel.dim("capacity")) if "capacity" in dims else 0.0
    prioritised = bool(dims.get("prioritised", kernel.kind == "replay_update"))
    if kernel.kind == "replay_insert":
        return kernel.dim("envs") * (1.0 + decisions * prioritised)
    if kernel.kind == "replay_update":
        return draws * decisions
    if kernel.kind == "replay_sample":
        return draws * (kernel.dim("n_step") + decisions * prioritised)
    if kernel.kind.startswith("learn."):
        return draws * (kernel.dim("n_step") + 2.0 * decisions * prioritised)
    return 0.0


def overhead_s(kernel: Kernel, device: Device, variant: str) -> float:
    """Seconds that one firing spends in launching its operations: their number times
    `Device.overhead_s`."""
    return launches(kernel, variant) * device.overhead_s


def call_overhead_s(kernel: Kernel, device: Device, variant: str) -> float:
    """Seconds that one firing on a CPU spends in starting its operations.

    Nothing is launched there. An eager torch operation costs its bookkeeping; a compiled call costs
    `Device.overhead_s`, or NATIVE_CALL_S where the platform gives 0.
    """
    if variant.startswith("torch"):
        gradients = kernel.kind.startswith("update.")
        return launches(kernel, variant) * (TORCH_GRADIENT_OP_S if gradients else TORCH_OP_S)
    return launches(kernel, variant) * (device.overhead_s or NATIVE_CALL_S)


def _of_terms(
    overhead: float,
    compute: float,
    memory: float,
    band: Band,
    source: str,
    waits: float = 0.0,
) -> Estimate:
    latency = overhead + waits + max(compute, memory)
    bound: Bound = "compute" if compute >= memory + waits else "memory"
    if overhead >= max(compute, memory + waits):
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
    """The datasheet rung of a device that kernels are launched on.

    Latency = launches + max(flops / (peak · width share), bytes / bandwidth). Environments are not
    counted in flops; they cost a call and a time each.
    """
    if kernel.kind == "env_step":
        return _env_step(kernel, variant)
    return _roofline(kernel, device, variant, width, overhead_s(kernel, device, variant), 0.0)


def cpu_roofline(kernel: Kernel, device: Device, variant: str, width: int) -> Estimate:
    """The datasheet rung of a CPU: as `roofline`, with calls in place of launches.

    Replay on a CPU waits for memory rather than moves it: each of its `accesses` adds
    SERIAL_STEP_S, which nothing hides.
    """
    if kernel.kind == "env_step":
        return _env_step(kernel, variant)
    calls_s = call_overhead_s(kernel, device, variant)
    return _roofline(kernel, device, variant, width, calls_s, SERIAL_STEP_S * accesses(kernel))


def _roofline(
    kernel: Kernel, device: Device, variant: str, width: int, start_s: float, waits_s: float
) -> Estimate:
    rate = device.peak_flops_per_s * width / device.width
    memory = (kernel.bytes_in + kernel.bytes_out) / device.memory_bytes_per_s
    return _of_terms(
        start_s,
        kernel.flops / rate,
        memory,
        ACCESS_BAND if waits_s else KERNEL_BAND,
        f"{ROOFLINE}: {launches(kernel, variant):g} launches + max(flops / rate, bytes / "
        f"bandwidth) of {device.model or device.name}; band assumed"
        + ("; passes assumed, nobody counted them" if passes_assumed(kernel) else ""),
        waits_s,
    )
