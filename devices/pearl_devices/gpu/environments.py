"""env_step on a GPU: the native environments, one thread each; see `sources/environments.cu`.

A firing computes the same as the native one of the CPU, with normalisation and the ring of finished
episodes. Only sines and cosines may differ in their last bits, as between two C libraries. A fast
acrobot is chaotic: a last bit of its state grows to 1e-5 within about 300 steps of an episode, and
then the episodes diverge.
"""

from __future__ import annotations

from pearl_devices.base import Call, UnsupportedError
from pearl_devices.gpu.driver import Arrays, Driver
from pearl_devices.gpu.kernels import BLOCK
from pearl_devices.gpu.program import Program
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import EPISODES, STATE
from pearl_devices.kernels.environments import has_native
from pearl_devices.primitives import NATIVE_ENVS

IN_SOURCE = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
)
"""Environments by their numbers in the source."""


def program(kernel: Kernel) -> Program:
    """Return the program of an env_step."""
    name = str(kernel.program)
    constants = {
        "ENVIRONMENT": IN_SOURCE.index(name),
        "OBS": kernel.dim("obs"),
        "LIMIT": NATIVE_ENVS[name].step_limit,
        "NORMALISE_OBS": int(bool(kernel.dims.get("normalise_obs"))),
        "NORMALISE_REWARD": int(bool(kernel.dims.get("normalise_reward"))),
        "EPISODES": EPISODES,
        "STATE": STATE,
    }
    return Program("environments.cu", constants, exact=True)


def bind_step(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind env_step. Start all environments unless rng.env_step says that they have run before.

    Raises:
        UnsupportedError: the environment is none of IN_SOURCE, or has other sizes or arguments.
    """
    if not has_native(kernel):
        raise UnsupportedError(
            f"kernel {kernel.kind}: {kernel.program!r} with sizes {dict(kernel.dims)} and "
            f"arguments {dict(kernel.args)} has no variant 'cuda'; there are {list(IN_SOURCE)}, "
            "without arguments and as gymnasium observes them"
        )
    import torch

    source, envs = program(kernel), kernel.dim("envs")
    blocks = -(-envs // BLOCK)
    threads = BLOCK if blocks > 1 else -(-envs // 32) * 32
    columns = 2 * kernel.dim("obs") + 1
    none = torch.zeros(0, dtype=torch.float64, device=driver.device)
    names = (
        "rng.env_step", "act.action", "env.obs", "env.state", "env.elapsed", "env.return",
        "episode.returns", "episode.lengths", "episode.count",
        "step.obs", "step.action", "step.reward", "step.next_obs", "step.terminated",
        "step.truncated",
    )  # fmt: skip
    statistics = ("obs", "obs.count", "reward", "reward.count", "return", "options")
    arguments = (
        *(arrays[name] for name in names),
        *(arrays.get(f"normalise.{name}", none) for name in statistics),
        torch.zeros(blocks + 1, dtype=torch.int64, device=driver.device),
        torch.zeros(columns + 3, dtype=torch.float64, device=driver.device),
        torch.zeros(2 * columns * blocks, dtype=torch.float64, device=driver.device),
        envs,
    )

    def launch(name: str) -> Call:
        return driver.prepare_launch(source, name, (blocks,), (threads,), arguments)

    launch("start")()
    if "normalise.obs" in arrays:
        launch("first")()
    if blocks == 1:
        return launch("step")
    move, finish = launch("move"), launch("finish")

    def call() -> None:
        move()
        finish()

    return call
