"""Inference on a GPU: the forward pass of a dense policy and the choice of actions in one launch;
see `sources/acting.cu`. Random numbers are those of the native variants."""

from __future__ import annotations

from pearl_devices.base import Call
from pearl_devices.gpu.driver import Arrays, Driver
from pearl_devices.gpu.nets import THREADS, Pass, split_pass
from pearl_devices.gpu.program import Program
from pearl_devices.kernel import Kernel

EPSILON_GREEDY, NOISE_AROUND, SQUASHED_GAUSSIAN, SOFTMAX, GAUSSIAN = range(5)
"""Numbers in the source for the ways to choose."""


def program(kernel: Kernel, choice: int) -> tuple[Program, Pass]:
    """Return the program of an inference, and how its forward pass is split."""
    layers, duelling = kernel.layers(), kernel.dims.get("duelling", 0)
    found = split_pass(layers, kernel.dim("envs"))
    constants = {
        **found.constants(curved=bool(kernel.dims.get("tanh"))),
        "CHOICE": choice,
        "ACT": kernel.dim("act"),
        "CHOICES": layers[-1] - int(bool(duelling)),
        "DUELLING": int(bool(duelling)),
    }
    return Program("acting.cu", constants), found


def _bind(kernel: Kernel, choice: int, arrays: Arrays, driver: Driver) -> Call:
    import torch

    source, found = program(kernel, choice)
    (network,) = kernel.networks
    none = torch.zeros(0, dtype=torch.float32, device=driver.device)
    widths, scratch, sizes = found.arguments(driver)
    names = ("explore", "act.low", "act.high", "act.action", "act.sample", "act.log_prob")
    arguments = (
        arrays["rng.inference"],
        arrays["env.obs"],
        arrays[f"policy.{network}"],
        *(arrays.get(name, none) for name in names),
        widths,
        scratch,
        torch.zeros(1, dtype=torch.int32, device=driver.device),
        kernel.dim("envs"),
        *sizes,
    )
    return driver.prepare_launch(
        source, "act", (found.blocks,), (THREADS,), arguments, shared_bytes=found.shared_bytes
    )


def bind_dqn(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind inference.dqn: epsilon-greedy on policy.q, duelling or not."""
    return _bind(kernel, EPSILON_GREEDY, arrays, driver)


def bind_ddpg(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind inference.ddpg, also for TD3: policy.actor's actions with Gaussian noise."""
    return _bind(kernel, NOISE_AROUND, arrays, driver)


def bind_sac(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind inference.sac: samples from policy.actor's squashed Gaussian."""
    return _bind(kernel, SQUASHED_GAUSSIAN, arrays, driver)


def bind_ppo(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind inference.ppo, also for A2C: samples from policy.actor, with log densities."""
    return _bind(kernel, GAUSSIAN if kernel.dim("act") else SOFTMAX, arrays, driver)
