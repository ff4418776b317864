"""Rollouts on a GPU: storing vector steps, generalised advantages, and copying parameters to the
acting side; see `sources/copies.cu` and `sources/advantages.cu`."""

from __future__ import annotations

from pearl_devices.base import Call
from pearl_devices.gpu.driver import Arrays, Driver
from pearl_devices.gpu.nets import THREADS, Pass, split_pass
from pearl_devices.gpu.program import Program
from pearl_devices.kernel import Kernel

MOST_BLOCKS = 256
"""Blocks of a copy; with more pieces, a block copies several."""
SPAN = 32
"""Environments per block of the advantages."""


def copy_program(kernel: Kernel) -> Program:
    """Return the program that copies."""
    return Program("copies.cu", {"CONTINUOUS": int(bool(kernel.dims.get("act", 1)))})


def _blocks(numbers: int) -> int:
    return min(-(-numbers // THREADS), MOST_BLOCKS)


def bind_insert(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind rollout_insert: rollout.* at rollout.at ← step.*, act.log_prob (and act.sample)."""
    import torch

    names = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "log_prob")
    sources = {name: f"step.{name}" for name in names}
    sources["log_prob"] = "act.log_prob"
    if kernel.dim("act"):
        sources["action"] = "act.sample"
    obs = kernel.dim("obs")
    arguments = (
        *(arrays[source] for source in sources.values()),
        *(arrays[f"rollout.{name}"] for name in names),
        arrays["rollout.at"],
        torch.zeros(1, dtype=torch.int32, device=driver.device),
        kernel.dim("horizon"),
        kernel.dim("envs"),
        obs,
        max(1, kernel.dim("act")),
    )
    blocks = _blocks(kernel.dim("envs") * obs)
    return driver.prepare_launch(copy_program(kernel), "insert", (blocks,), (THREADS,), arguments)


def advantages_program(kernel: Kernel) -> tuple[Program, Pass]:
    """Return the program of advantages, and how its forward pass is split."""
    found = split_pass(kernel.layers("critic"), kernel.dim("envs") * kernel.dim("horizon"))
    constants = found.constants(curved=bool(kernel.dim("tanh")))
    return Program("advantages.cu", constants), found


def bind_advantages(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind gae: rollout.value, advantage and returns ← a whole rollout and policy.critic."""
    import torch

    source, found = advantages_program(kernel)
    steps, envs = kernel.dim("horizon"), kernel.dim("envs")
    widths, scratch, sizes = found.arguments(driver)
    ahead = torch.zeros(steps * envs, dtype=torch.float32, device=driver.device)
    ends, value = [arrays[f"rollout.{n}"] for n in ("terminated", "truncated")], "rollout.value"
    seen = (arrays["rollout.obs"], arrays["rollout.next_obs"], *ends, arrays["policy.critic"])
    judge = driver.prepare_launch(
        source,
        "judge",
        (found.blocks,),
        (THREADS,),
        (*seen, arrays[value], ahead, widths, scratch, steps * envs, (steps - 1) * envs, *sizes),
        shared_bytes=found.shared_bytes,
    )
    results = [arrays[f"rollout.{name}"] for name in ("advantage", "returns")]
    constants = [arrays[f"hyper.{name}"] for name in ("discount", "gae_lambda")]
    trace = driver.prepare_launch(
        source,
        "trace",
        (-(-envs // SPAN),),
        (THREADS,),
        (arrays["rollout.reward"], *ends, arrays[value], ahead, *results, *constants, steps, envs),
    )

    def call() -> None:
        judge()
        trace()

    return call


def bind_sync(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind param_sync: policy.X ← learner.X, of one network or two."""
    names = str(kernel.args["network"]).split("+")
    pairs = [(arrays[f"learner.{name}"], arrays[f"policy.{name}"]) for name in names]
    sizes = [policy.numel() for _, policy in pairs]
    if len(pairs) == 1:
        pairs, sizes = [*pairs, *pairs], [*sizes, 0]
    arguments = [x for pair, size in zip(pairs, sizes, strict=True) for x in (*pair, size)]
    return driver.prepare_launch(
        copy_program(kernel), "copy", (_blocks(max(sizes)),), (THREADS,), arguments
    )
