"""A simulated FPGA: a learner and a sum tree in Verilog (`systolic`), or PEARL's `released` design.

No board is driven. `rtl/` has the engines of the design `systolic`, `program` and `learner` their
programs and exact cycles; `simulation` and `bench` run the Verilog. `primitives.fpga` is the
bit-exact model of the Verilog, and computes the tasks that a plan puts on this device. The design
`released` is the cost model by which PEARL's authors chose devices (HeteroRL, Zenodo
10.5281/zenodo.10982989). It has no Verilog here, and its tasks compute the host's numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from pearl_devices.base import Buffers, Call, Device, FigureError, UnsupportedError
from pearl_devices.device_kind import Refused
from pearl_devices.fpga.kernels import ENGINES
from pearl_devices.fpga.learner import LearnerProgram
from pearl_devices.fpga.logic import Logic, learner_logic, logic_misfit
from pearl_devices.fpga.program import LATENCY, Shape
from pearl_devices.fpga.resources import (
    TREE_WIDTH,
    Sizes,
    figure,
    learner_memories,
    misfit,
    on_chip,
    released_misfit,
    released_tree_width,
    tree_engine,
)
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.kernels.replay import is_prioritised

if TYPE_CHECKING:
    from pearl_devices.fpga.design import Design

WIDTH_UNIT = "pe"  # a float32 multiply-add unit
SIMULATED = True
ESTIMATE = "pearl_estimators.fpga:closed_form"

DESIGNS = ("systolic", "released")

ARRAYS = (8, 16, 32, 64)
"""Sizes N of the array of N × N elements that plans choose from."""

LANES = (4, 1)
"""N divided by one of these is the number of Adam's lanes that plans choose from."""

SHARE = 1 / 8
"""Share of the memory on chip. While a learner takes more, a smaller sub-batch is offered too: it
takes longer and leaves room to other engines."""

RELEASED_TREE_DSP = 40
"""DSP blocks that the released learner leaves to the replay: two for each of up to 20 levels."""

FRAMES = "no design stores stacked frames"


def check(device: Device) -> None:
    """Check the figures that offers and estimates need.

    Raises:
        FigureError: a figure is missing or 0.
    """
    figure(device, "clock_hz")
    on_chip(device)


def is_released(device: Device) -> bool:
    """Whether the device has the design that PEARL's authors released."""
    return device.design == DESIGNS[1]


@cache
def _learner(kernel: Kernel, shape: Shape, *rows: int) -> LearnerProgram | str:
    """Return the learner of this shape for a kernel, or the reason why there is none.

    rows: of a sub-batch; without it, the batch is whole.
    """
    make: Callable[..., LearnerProgram] = resolve_name(ENGINES[kernel.kind][0])
    try:
        return make(kernel, shape, *rows)
    except ValueError as error:
        return str(error)


def learner_of(kernel: Kernel, device: Device, variant: str, width: int) -> LearnerProgram:
    """Return the learner of a mode: variant `arrayN` or `arrayN-subR`, with as many lanes of Adam
    as fit into `width` multiply-add units.

    Raises:
        FigureError: no learner fits, or the device has no hard float32 block.
    """
    array, rows = _sizes(variant)
    found = [_learner(kernel, s, *rows) for s in _shapes(kernel, device) if s.array == array]
    fitting = [x for x in found if isinstance(x, LearnerProgram) and x.blocks() <= width]
    if not fitting:
        raise FigureError(
            f"kernel {kernel.kind} on {device.name!r}: no engine {variant!r} of {width} pe "
            f"computes it; there are {sorted(_arrays(kernel, device))}"
        )
    return max(fitting, key=LearnerProgram.blocks)


def _sizes(variant: str) -> tuple[int, tuple[int, ...]]:
    """Return the array of a variant, 0 if there is none, and the rows of a sub-batch, if any."""
    sizes = re.fullmatch(r"array(\d+)(?:-sub(\d+))?", variant)
    if sizes is None:
        return 0, ()
    return int(sizes[1]), (int(sizes[2]),) if sizes[2] else ()


def _shapes(kernel: Kernel, device: Device) -> list[Shape]:
    """Return the learners' shapes; for a forward pass, those with the fewest lanes of Adam."""
    latency = int(figure(device, "float32_cycles"))
    parts = LANES if kind_of(kernel).structure == "gradient" else LANES[:1]
    return [Shape(n, n // part, latency) for n in ARRAYS for part in parts]


def _sub_batches(kernel: Kernel, shape: Shape) -> Iterator[tuple[int, ...]]:
    """Yield () for the whole batch, then the rows of sub-batches: N times falling powers of two."""
    yield ()
    if kind_of(kernel).structure == "gradient":
        tiles = -(-kernel.dim("batch") // shape.array)
        for power in reversed(range((tiles - 1).bit_length())):
            yield (shape.array << power,)


def _arrays(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Return the modes of the engines that compute a forward pass or gradient steps."""
    ram = on_chip(device)
    if not device.figures.get("float32_cycles"):
        return Refused(
            "no hard float32 block (figure float32_cycles), which the array needs: a soft block "
            "takes 8 to 11 cycles a sum"
        )
    part = tuple(replace(kind, blocks=SHARE * kind.blocks) for kind in ram)
    reasons, fitting = [], []
    for shape in _shapes(kernel, device):
        why = ""
        for rows in _sub_batches(kernel, shape):
            found = _learner(kernel, shape, *rows)
            if isinstance(found, str):
                why = why or found
            elif found.blocks() > device.width:
                why = f"{found.name} needs {found.blocks()} pe, has {device.width}"
                break
            elif why := logic_misfit([learner_logic(shape, found.action > 0)], device, found.name):
                break
            elif not (why := misfit(learner_memories(found), ram, found.name)):
                fitting.append((found.name, found.blocks()))
                if not misfit(learner_memories(found), part, ""):
                    break
        reasons.append(why)
    return tuple(fitting) or Refused(reasons[0])


def _released(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Return the modes of the released design.

    The design runs gradient steps (`layered`: one unit for each layer and pass; the units share
    the DSP blocks), a prioritised replay (`tree`), and the copy of parameters. It has no inference,
    no replay without priorities, and no engine that samples and learns in one call.
    """
    structure = kind_of(kernel).structure
    found: tuple[tuple[str, int], ...]
    if structure == "gradient":
        if device.width <= RELEASED_TREE_DSP:
            return Refused(
                f"the released design needs more than {RELEASED_TREE_DSP} pe, has {device.width}"
            )
        found = (("layered", device.width - RELEASED_TREE_DSP),)
    elif structure in ("insert", "sample", "prioritise") and is_prioritised(kernel):
        if kernel.dims.get("stack") or kernel.dims.get("units"):
            return Refused(FRAMES)
        found = (("tree", released_tree_width(kernel)),)
    else:
        return Refused(
            "the released design runs gradient steps, a prioritised replay and the copy of "
            "parameters"
        )
    if large := released_misfit(kernel, on_chip(device)):
        return Refused(large)
    if found[0][1] > device.width:
        return Refused(f"{found[0][0]} needs {found[0][1]} pe, has {device.width}")
    return found


def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
    """Return the engines that fit: `arrayN` with few or many lanes, `arrayN-subR` that processes
    the batch in sub-batches of R rows, `integer-tree`, `ring`, `copy`.

    An engine fits if the device has enough multiply-add units (`Device.width`: DSP blocks with
    float32) and enough memory on chip. No design draws random numbers, stores frames, or computes
    duelling networks, torch modules or custom algorithms.
    """
    kind = kind_of(kernel)
    if kernel.dims.get("duelling"):
        return Refused("no design computes a duelling network")
    if kernel.modules:
        return Refused("no design computes torch modules")
    if kind.structure == "copy":
        return (("copy", 1),)
    learns = kind.structure in ("network", "gradient")
    if learns and kernel.kind not in ENGINES and not is_released(device):
        return Refused(f"the engines compute DQN and DDPG; {kernel.kind} runs on CPUs and GPUs")
    if kind.stochastic:
        return Refused("no design draws random numbers")
    if is_released(device):
        return _released(kernel, device)
    if learns:
        return _arrays(kernel, device)
    if kernel.dims.get("stack") or kernel.dims.get("units"):
        return Refused(FRAMES)
    if kind.structure in ("insert", "sample", "prioritise"):
        if not is_prioritised(kernel):
            return (("ring", 1),)
        on_chip(device)
        try:
            tree_engine(kernel, device)
        except FigureError as error:
            return Refused(str(error))
        return (("integer-tree", TREE_WIDTH),)
    if kind.structure == "fused":
        return Refused("learner and replay are two engines; no design does both in one call")
    return Refused(f"no design computes a kernel of structure {kind.structure}")


def crowding(device: Device, engines: Sequence[tuple[Kernel, str, int]]) -> str:
    """Return why the engines of a plan do not fit together on a device; empty if they fit.

    engines: kernel, variant and width of each task on the device. The tasks of a replay share a
    tree.
    """
    if is_released(device):
        return ""
    sizes: Sizes = []
    logic: list[Logic | None] = []
    for kernel, variant, width in engines:
        if _sizes(variant)[0]:
            learner = learner_of(kernel, device, variant, width)
            sizes += learner_memories(learner)
            logic.append(learner_logic(learner.shape, learner.action > 0))
        elif variant == "integer-tree" and kind_of(kernel).structure == "sample":
            tree = tree_engine(kernel, device)
            sizes += tree.memories()
            logic.append(tree.logic())
    what = "the set of engines"
    return misfit(sizes, on_chip(device), what) or logic_misfit(logic, device, what)


def tell_unchecked(device: Device) -> str:
    """Return what plans do not check on a device; empty if they check all that engines need."""
    if is_released(device):
        return ""
    if "alms" not in device.figures:
        return "logic cells are not checked, because the device has no figure alms"
    if (latency := device.figures.get("float32_cycles", LATENCY)) != LATENCY:
        return f"logic cells of learners are not checked for float32 blocks of latency {latency:g}"
    return ""


def verilog(kernel: Kernel, device: Device, variant: str, width: int) -> Design | None:
    """Return the design of a mode: a learner for gradient steps, a sum tree for draws, else None.

    Raises:
        UnsupportedError: the device has the released design, which has no Verilog here.
    """
    structure = kind_of(kernel).structure
    if is_released(device):
        raise UnsupportedError(
            f"device {device.name!r}: PEARL's released design has no Verilog here; take the design "
            "systolic"
        )
    if structure == "gradient":
        from pearl_devices.fpga.export import learner_design

        return learner_design(kernel, learner_of(kernel, device, variant, width))
    if structure == "sample" and variant == "integer-tree":
        from pearl_devices.fpga.tree_export import tree_design

        return tree_design(kernel, tree_engine(kernel, device))
    return None


def bind(kernel: Kernel, variant: str, buffers: Buffers) -> Call:
    """Bind the bit-exact model of an engine. `ring`, `copy` and the released design run the host's
    code.

    Raises:
        UnsupportedError: the variant is no engine of a simulated FPGA.
    """
    array, _ = _sizes(variant)
    if array and kernel.kind in ENGINES:
        twin: Callable[..., Call] = resolve_name(ENGINES[kernel.kind][1])
        return twin(kernel, buffers, array)
    if variant == "integer-tree":
        from pearl_devices.primitives.fpga import tree

        return tree.bind(kernel, buffers)
    if variant not in ("layered", "tree", "ring", "copy"):
        raise UnsupportedError(
            f"kernel {kernel.kind}, variant {variant!r}: a simulated FPGA has the engines "
            f"{', '.join(f'array{n}' for n in ARRAYS)}, integer-tree, ring, layered, tree and copy"
        )
    from pearl_devices import backend

    return backend("cpu").bind(kernel, "native", buffers)
