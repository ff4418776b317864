"""Simulated processing in memory: tables that learn where their log lies, after UPMEM's DIMMs.

No such memory is driven, and a bound kernel computes with the host's native code. A DRAM processing
unit (DPU) has its own bank (MRAM), reaches it by DMA through a small scratchpad (WRAM), and issues
min(tasklets, 11) / 11 instructions a cycle. No path leads from one DPU to another, so an average is
a transfer of every table to the host and back (AnandTech, Hot Chips 31: UPMEM). Figures and their
sources are in `configs/devices/pims.yaml`.
"""

from __future__ import annotations

from pearl_devices.base import Buffers, Call, Device, FigureError, UnsupportedError
from pearl_devices.device_kind import FiringCost, Refused
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.offline import ROW_BYTES, table_bytes

WIDTH_UNIT = "dpu"
SIMULATED = True

FULL = 11
"""Tasklets that fill the pipeline: one of them issues in every 11th cycle (AnandTech, Hot Chips 31:
"only 11 are needed for 100% utilization")."""

ADD, MULTIPLY, COMPARE = 71, 183, 71
"""Instructions of an operation of float32, by software. Assumed: 350 MHz over the 4.91 and 1.91
million operations a second that were recalled of one DPU of arXiv 2105.03814; no page was read.
A comparison is assumed to cost a sum."""
INT_ADD, INT_MULTIPLY, INT_COMPARE = 6, 137, 3
"""Instructions of an operation of int32, of a product of 64 bits and of a comparison. Assumed: as
above, of 58.56 and 2.56 million."""
CONTROL = 40
"""Assumed number of instructions of a transition for loads, addresses and the loop."""

FIGURES = {
    "clock_hz": 350e6, "tasklets": 16, "wram_bytes": 65536, "dma_block_bytes": 2048,
    "dma_cycles": 77, "dma_bytes_per_cycle": 2, "dpu_bytes_per_s": 0.33e9,
    "gather_bytes_per_s": 4.74e9, "scatter_bytes_per_s": 6.68e9, "transfer_s": 2e-5,
    "host_bytes_per_s": 10e9,
}  # fmt: skip
"""Figures that a device must give, with those of `EXAMPLE`."""
EXAMPLE = Device("pim", "pim", 64, memory_bytes=2.0**32, overhead_s=5e-5, figures=FIGURES)


def check(device: Device) -> None:
    """Checks that the device gives every figure.

    Raises:
        FigureError: one is missing or 0.
    """
    for name in FIGURES:
        if not device.figures.get(name):
            raise FigureError(
                f"device {device.name!r} of kind pim gives no {name}; it needs each of "
                f"{', '.join(FIGURES)}, as in configs/devices/pims.yaml"
            )


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """`tables`, a DPU for each chunk, where the chunk fits a bank and its table the scratchpad."""
    if kind_of(kernel).structure not in ("sweep", "average"):
        return Refused("learns tables from a log alone (algorithm.offline)")
    check(device)
    chunks, has = kernel.dim("chunks"), device.figures
    if chunks > device.width:
        return Refused(f"{chunks} chunks need a DPU each, has {device.width}")
    need = table_bytes(kernel) + has["tasklets"] * has["dma_block_bytes"]
    if need > has["wram_bytes"]:
        most = f"{has['wram_bytes'] / 1024:.4g} KiB"
        return Refused(f"table and DMA buffers need {need / 1024:.4g} KiB of WRAM, has {most}")
    log, bank = kernel.dim("batch") // chunks * ROW_BYTES, device.memory_bytes / device.width
    if log > bank:
        return Refused(f"a chunk needs {log / 2**20:.4g} MiB of MRAM, has {bank / 2**20:.4g} MiB")
    return (("tables", chunks),)


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """The host's own computation of the same numbers.

    Raises:
        UnsupportedError: the variant is not `tables`.
    """
    if variant != "tables":
        raise UnsupportedError(
            f"kernel {kernel.kind} has no variant {variant!r} on a simulated pim; it has tables"
        )
    from pearl_devices import backend

    return backend("cpu").bind(kernel, "native", buffers)


def instructions(kernel: Kernel) -> int:
    """Instructions of one transition: the row ahead compared (of sarsa too), target, entry."""
    others = kernel.dim("actions") - 1
    if kernel.dim("bits"):
        return CONTROL + others * INT_COMPARE + 2 * INT_MULTIPLY + 7 * INT_ADD
    return CONTROL + others * COMPARE + 2 * MULTIPLY + 3 * ADD


def sweep_cycles(kernel: Kernel, device: Device) -> tuple[float, float]:
    """Cycles in which one DPU issues the instructions of its chunk, and cycles of its DMA.

    In the order of the log one transfer brings a block, in other orders one row.
    """
    rows, has = kernel.dim("batch") // kernel.dim("chunks"), device.figures
    issue = rows * instructions(kernel) * FULL / min(has["tasklets"], FULL)
    moved = ROW_BYTES if kernel.dim("order") else has["dma_block_bytes"]
    transfers = -(-rows * ROW_BYTES // moved)
    each = has["dma_cycles"] + moved / has["dma_bytes_per_cycle"]
    return issue, transfers * each


def average_s(kernel: Kernel, device: Device) -> float:
    """Seconds of an average: tables to the host, their sum there, the mean to all DPUs, a start."""
    chunks, has = kernel.dim("chunks"), device.figures
    size, each = chunks * table_bytes(kernel), chunks * has["dpu_bytes_per_s"]
    gather, scatter = (min(each, has[f"{way}_bytes_per_s"]) for way in ("gather", "scatter"))
    moved = size / gather + size / has["host_bytes_per_s"] + size / scatter
    return moved + 2 * has["transfer_s"] + device.overhead_s


def closed_form(kernel: Kernel, device: Device, variant: str, width: int) -> FiringCost:
    """Modelled seconds: of a sweep the longer of issue and DMA of one DPU (with one tasklet their
    sum), of an average the transfers. A width above the chunks changes nothing.

    Tasklets of a DPU are assumed never to wait for one another's entries.
    """
    if kind_of(kernel).structure == "average":
        seconds, bound = average_s(kernel, device), "memory"
    else:
        issue, dma = sweep_cycles(kernel, device)
        cycles = issue + dma if device.figures["tasklets"] == 1 else max(issue, dma)
        seconds = cycles / device.figures["clock_hz"]
        bound = "compute" if issue >= dma else "memory"
    return {
        "latency_s": seconds,
        "low_s": 0.5 * seconds,  # assumed
        "high_s": 2.0 * seconds,
        "bound_by": bound,
        "source": "modelled: closed form of a DPU, nothing measured; instructions assumed",
    }


ESTIMATE = closed_form
