"""The replay in CUDA: ring, sum tree, frames. It equals the CPU's `pearl_devices.primitives.replay`
bit for bit, except for powers.

Sizes are arguments of the kernels, so one compiled program serves all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pearl_devices.base import Call
from pearl_devices.gpu.driver import Arrays, Driver, Launch
from pearl_devices.gpu.kernels import lanes, phases
from pearl_devices.gpu.program import Program
from pearl_devices.gpu.streams import STREAMED
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.replay import tree_levels

RING = Program("replay.cu")

THREADS = 256
BLOCKS = 1024
"""Most blocks that copy rows."""

ROW = "obs action reward next_obs terminated truncated"
BATCH = "obs action reward next_obs discount"
STREAM = "rng.replay_sample"


def columns(arrays: Arrays, prefix: str, names: str) -> list[Any]:
    return [arrays[f"{prefix}.{name}"] for name in names.split()]


def sizes(kernel: Kernel, names: str) -> list[int]:
    """Return sizes of a kernel, by their names."""
    return [kernel.dim(name) for name in names.split()]


def call_in_order(launches: Sequence[Launch]) -> Call:
    """Return one firing: these launches in order."""

    def call() -> None:
        for launch in launches:
            launch()

    return call


def numbers(values: Sequence[int], driver: Driver) -> Any:
    """Return whole numbers on the device."""
    import torch

    return torch.tensor(values, dtype=torch.int64, device=driver.device)


def as_tensors(arrays: Arrays, driver: Driver) -> Arrays:
    """Return the arrays as tensors; those in the host's memory as kernels reach them there."""
    return {n: a if hasattr(a, "data_ptr") else driver.map_array(a) for n, a in arrays.items()}


def completing_stores(call: Call, arrays: Arrays, driver: Driver) -> Call:
    """Return a call that writes rows. If the rows lie in the host's memory, the call is complete
    when it returns, because readers there do not wait for the device.

    arrays: before `as_tensors`.
    """
    here = all(hasattr(a, "data_ptr") for a in arrays.values())
    if here or driver.device.type not in STREAMED:
        return call
    import torch

    stream: Any = torch.get_device_module(driver.device).current_stream

    def complete() -> None:
        call()
        stream(driver.device).synchronize()

    return complete


def zeros(count: int, dtype: str, driver: Driver) -> Any:
    """Make scratch memory of a kernel, filled with zeros."""
    import torch

    return torch.zeros(count, dtype=getattr(torch, dtype), device=driver.device)


def make_word(driver: Driver) -> Any:
    """Make a number in the host's memory: kernels write it and the host reads it without
    waiting."""
    import torch

    from pearl_devices.gpu.streams import streams_of

    return streams_of(driver.device).staging(torch.zeros(1, dtype=torch.int64)).zero_()


def sum_tree(kernel: Kernel, arrays: Arrays, driver: Driver) -> tuple[Any, ...]:
    """Return (nodes, level widths, number of levels, fanout); depth 0 if the replay is uniform."""
    if not kernel.dims.get("prioritised", 1):
        none = numbers((), driver)
        return none, none, 0, 0
    levels = tree_levels(kernel.dim("capacity"), kernel.dim("fanout"))
    return arrays["replay.tree"], numbers(levels, driver), len(levels), kernel.dim("fanout")


def action_words(kernel: Kernel) -> int:
    """Return the 32-bit words of an action; a discrete action is an int64."""
    return kernel.dim("act") or 2


def check_ring(kernel: Kernel) -> None:
    """Check that the rows of one vector step stay together in the ring.

    Raises:
        ValueError: the capacity is no multiple of the environments, or less than twice as many.
    """
    capacity, envs = kernel.dim("capacity"), kernel.dim("envs")
    if capacity % envs or capacity < 2 * envs:
        raise ValueError(
            f"kernel {kernel.kind}: capacity {capacity} must be a multiple of envs {envs} and at "
            "least twice that; otherwise rows of one step would be split"
        )


def bind_insert(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind replay_insert: write step.* at the cursor, with the largest priority so far; one
    launch."""
    check_ring(kernel)
    given, arrays = arrays, as_tensors(arrays, driver)
    n, tree = kernel.dim("envs"), sum_tree(kernel, arrays, driver)
    words = n * max(kernel.dim("obs"), action_words(kernel))
    insert = driver.prepare_launch(
        RING,
        "replay_insert",
        (min(-(-words // THREADS), BLOCKS),),
        (THREADS,),
        (
            *columns(arrays, "step", ROW),
            *columns(arrays, "replay", ROW),
            arrays["replay.cursor"],
            *tree,
            arrays["replay.priority"] if tree[2] else tree[0],
            zeros(1, "int32", driver),
            *sizes(kernel, "envs capacity obs"),
            action_words(kernel),
        ),
    )
    return completing_stores(insert, given, driver)


def draw_launches(kernel: Kernel, arrays: Arrays, driver: Driver) -> tuple[list[Launch], Any]:
    """Return launches that draw rows from the tree (none if the replay is uniform), and the bits of
    the least priority of each batch, which the launches write for the weights (infinity before)."""
    import torch

    least = torch.full((kernel.dim("steps"),), torch.inf, device=driver.device)
    tree = sum_tree(kernel, arrays, driver)
    if not tree[2]:
        return [], least
    count = kernel.dim("steps") * kernel.dim("batch") * lanes(kernel.dim("fanout"))
    launch = driver.prepare_launch(
        RING,
        "replay_draw",
        (-(-count // THREADS),),
        (THREADS,),
        (
            *tree,
            arrays[STREAM],
            *columns(arrays, "batch", "index weight"),
            least,
            *sizes(kernel, "steps batch"),
        ),
    )
    return [launch], least


def bind_sample(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind replay_sample: fill batch.* with `steps` batches; two launches, one if it is uniform."""
    check_ring(kernel)
    arrays = as_tensors(arrays, driver)
    before, least = draw_launches(kernel, arrays, driver)
    gather = driver.prepare_launch(
        RING,
        "replay_gather",
        (-(-kernel.dim("steps") * kernel.dim("batch") * 32 // THREADS),),
        (THREADS,),
        (
            arrays[STREAM],
            *columns(arrays, "replay", f"{ROW} cursor"),
            arrays["replay.beta"] if before else least,
            arrays["hyper.discount"],
            *columns(arrays, "batch", "index weight"),
            least,
            *columns(arrays, "batch", BATCH),
            zeros(1, "int32", driver),
            *sizes(kernel, "steps batch prioritised envs n_step capacity obs"),
            action_words(kernel),
        ),
    )
    return call_in_order((*before, gather))


def bind_priorities(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind replay_update: set priorities of batch.index from batch.td; the last duplicate counts.

    One launch for small batches, else one launch per level below the completely recomputed levels.
    """
    tree = sum_tree(kernel, arrays, driver)
    whole, count, at_once = phases(kernel)
    n = kernel.dim("steps") * kernel.dim("batch")
    width = n * lanes(kernel.dim("fanout"))
    batch = columns(arrays, "batch", "index td")

    def launch(first: int, last: int, blocks: int, threads: int) -> Launch:
        given = (*tree, arrays["replay.priority"], *batch, n, whole, first, last)
        return driver.prepare_launch(RING, "replay_update", (blocks,), (threads,), given)

    if at_once:
        return launch(0, count, 1, min(-(-width // 32) * 32, 1024))
    below = [launch(p, p + 1, -(-width // THREADS), THREADS) for p in range(count - 1)]
    return call_in_order((*below, launch(count - 1, count, 1, 1024)))
