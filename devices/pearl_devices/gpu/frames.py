"""The replay of stacked uint8 frames in CUDA; see `pearl_devices.primitives.replay.frames`."""

from __future__ import annotations

from pearl_devices.base import Call
from pearl_devices.gpu.driver import Arrays, Driver
from pearl_devices.gpu.program import Program
from pearl_devices.gpu.replay import (
    BATCH,
    ROW,
    STREAM,
    THREADS,
    action_words,
    as_tensors,
    call_in_order,
    columns,
    completing_stores,
    draw_launches,
    make_word,
    sizes,
    sum_tree,
    zeros,
)
from pearl_devices.kernel import Kernel

FRAMES = Program("frames.cu")

STORED = "action reward terminated truncated"


def _frame_sizes(kernel: Kernel) -> tuple[int, int, int, int]:
    """Return (places in the ring of frames, bytes of a frame, slots of last frames, earlier frames
    in a stack)."""
    stack = kernel.dim("stack")
    places = kernel.dim("capacity") + (stack - 1) * kernel.dim("apart")
    return places, kernel.dim("obs") // stack, kernel.dim("ends"), stack - 1


def bind_insert(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind replay_insert: write the newest frames of step.* at the cursor; two launches.

    A firing that needs more last frames than are kept sets a word in the host's memory. The next
    call that reads the word raises ValueError.
    """
    n, (places, size, ends, most) = kernel.dim("envs"), _frame_sizes(kernel)
    of_ring = sizes(kernel, "envs capacity apart")
    given, arrays = arrays, as_tensors(arrays, driver)
    kept = {name: arrays[f"replay.{name}"] for name in STORED.split()}
    told = make_word(driver)
    slot, tree = zeros(n, "int64", driver), sum_tree(kernel, arrays, driver)
    mark = driver.prepare_launch(
        FRAMES,
        "frames_mark",
        (1,),
        (min(-(-n // 32) * 32, 1024),),
        (
            arrays["step.truncated"],
            kept["terminated"],
            kept["truncated"],
            *columns(arrays, "replay", "depth last_row clock cursor"),
            slot,
            told,
            *of_ring,
            places,
            ends,
            most,
        ),
    )
    insert = driver.prepare_launch(
        FRAMES,
        "frames_insert",
        (n,),
        (THREADS,),
        (
            *columns(arrays, "step", ROW),
            *kept.values(),
            *columns(arrays, "replay", "frame ahead last clock"),
            slot,
            arrays["replay.cursor"],
            *tree,
            arrays["replay.priority"] if tree[2] else tree[0],
            zeros(1, "int32", driver),
            *of_ring,
            places,
            size,
            kernel.dim("obs"),
            action_words(kernel),
        ),
    )

    def call() -> None:
        mark()
        insert()
        if int(told):
            raise ValueError(
                "replay: more episodes were cut than it has last frames for; cut them later, or "
                "store whole observations (frame_stack: 0)"
            )

    return completing_stores(call, given, driver)


def bind_sample(kernel: Kernel, arrays: Arrays, driver: Driver) -> Call:
    """Bind replay_sample: fill batch.* with `steps` batches; two launches, one if it is uniform."""
    arrays = as_tensors(arrays, driver)
    before, least = draw_launches(kernel, arrays, driver)
    gather = driver.prepare_launch(
        FRAMES,
        "frames_gather",
        (kernel.dim("steps") * kernel.dim("batch"),),
        (THREADS,),
        (
            arrays[STREAM],
            *columns(arrays, "replay", f"{STORED} frame depth ahead last last_row clock cursor"),
            arrays["replay.beta"] if before else least,
            arrays["hyper.discount"],
            *columns(arrays, "batch", "index weight"),
            least,
            *columns(arrays, "batch", BATCH),
            zeros(1, "int32", driver),
            *sizes(kernel, "steps batch prioritised apart n_step capacity"),
            *_frame_sizes(kernel),
            action_words(kernel),
        ),
    )
    return call_in_order((*before, gather))
