"""Export of a plan's learner as Verilog: sources, parameters, a test bench with golden vectors.

The golden vectors are one gradient step of the bit-exact model on random numbers. The test bench
runs in any Verilog simulator: there `float32.v` replaces the hard float32 blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name

import numpy as np

from pearl_devices.buffers import allocate
from pearl_devices.fpga.bench import (
    BOUNDS,
    SETTINGS,
    Arrays,
    Words,
    batch_stream,
    make_bound_rows,
    make_settings,
    parameters,
    rows_of,
    stream_of,
)
from pearl_devices.fpga.design import Design, make_files, write_commands
from pearl_devices.fpga.kernels import ENGINES
from pearl_devices.fpga.learner import LearnerProgram, transfer
from pearl_devices.fpga.logic import learner_logic
from pearl_devices.fpga.program import Instruction
from pearl_devices.fpga.resources import learner_memories, needs_of
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of

PARTS = {"B": "", "T": ".target", "M": ".m", "V": ".v"}
"""Place of parameters, targets and moments in an engine → ending of the arrays' names."""


def golden_program(learner: LearnerProgram) -> tuple[Instruction, ...]:
    """Return the program: load everything, take one gradient step, store parameters and targets."""
    loads = [i for place in PARTS for i in transfer(learner, "load", place)[:-1]]
    stores = [i for place in "BT" for i in transfer(learner, "store", place)[:-1]]
    bounds = BOUNDS[:-1] if learner.action else ()
    return (*loads, *bounds, *learner.program[:-1], *stores, Instruction("halt"))


def fill(learner: LearnerProgram, arrays: Arrays, rng: np.random.Generator) -> None:
    """Fill the parameters and hyper-parameters of a gradient step; parameters are random."""
    for net in learner.nets:
        for part in ("", ".target"):
            flat = arrays[f"learner.{net}{part}"]
            flat[:] = 0.3 * rng.normal(size=flat.size)
        arrays[f"hyper.lr.{net}"][:] = 1e-3
    constants = {"tau": 0.01, "target_every": 0.0, "clip_norm": 10.0, "huber": 1.0}
    for name, value in constants.items():
        arrays[f"hyper.{name}"][:] = value
    arrays["hyper.adam"][:] = 0.9, 0.999, 1e-8
    if learner.action:
        arrays["act.low"][:], arrays["act.high"][:] = -2.0, 1.5


def draw(learner: LearnerProgram, arrays: Arrays, rng: np.random.Generator) -> None:
    """Fill the batch of a gradient step with random numbers, subnormal numbers among them."""
    for name in ("obs", "next_obs", "reward"):
        arrays[f"batch.{name}"][:] = rng.normal(size=arrays[f"batch.{name}"].shape)
    arrays["batch.obs"].flat[0] = 1e-40
    arrays["batch.weight"][:] = rng.random(arrays["batch.weight"].shape)
    arrays["batch.weight"].flat[0] = 1e-41
    arrays["batch.discount"][:] = 0.99 * (rng.random(arrays["batch.discount"].shape) < 0.9)
    action = arrays["batch.action"]
    if learner.action:
        action[:] = rng.uniform(arrays["act.low"], arrays["act.high"], action.shape)
    else:
        action[:] = rng.integers(learner.nets["q"].widths[-1], size=action.shape)


def golden(kernel: Kernel, learner: LearnerProgram) -> dict[str, Words]:
    """Return the rows of each file of the test bench.

    Keys: program (8 words of 32 bits per instruction), settings, stream, golden_out, golden_td.
    """
    one = kind_of(kernel).kernel({**kernel.dims, "steps": 1})
    arrays, rng = allocate([one]), np.random.default_rng(0)
    fill(learner, arrays, rng)
    draw(learner, arrays, rng)

    def parameters_of(places: str) -> list[Words]:
        vectors = [
            {net: arrays[f"learner.{net}{PARTS[place]}"] for net in learner.nets}
            for place in places
        ]
        return [row for some in vectors for row in rows_of(learner, some)]

    rows = parameters_of("BTMV") + (make_bound_rows(arrays) if learner.action else [])
    stream = np.concatenate([stream_of(learner, rows), batch_stream(learner, arrays, 1)])
    resolve_name(ENGINES[kernel.kind][1])(one, arrays, learner.shape.array)()
    settings = np.zeros((16, 1), np.float32)
    numbers = make_settings(learner, arrays)
    settings[: len(SETTINGS), 0] = [numbers[name] for name in SETTINGS]
    program = [i.word().to_bytes(32, "little") for i in golden_program(learner)]
    return {
        "program": np.frombuffer(b"".join(program), np.uint32).reshape(-1, 8),
        "settings": settings.view(np.uint32),
        "stream": stream,
        "golden_out": np.array(parameters_of("BT"), np.uint32),
        "golden_td": arrays["batch.td"][0].view(np.uint32).reshape(-1, 1),
    }


def learner_design(kernel: Kernel, learner: LearnerProgram) -> Design:
    """Return the design for a kernel of gradient steps, with the cycles of one step."""
    return Design(learner.name, learner.cycles, learner.blocks(), export(kernel, learner))


def export(kernel: Kernel, learner: LearnerProgram) -> dict[str, str]:
    """Return the files for a kernel of gradient steps: name → content."""
    vectors = golden(kernel, learner)
    program = golden_program(learner)
    sizes = {**parameters(learner), "PROGRAM": len(program)}
    counts = {
        "BEATS": len(vectors["stream"]),
        "OUTS": len(vectors["golden_out"]),
        "TDS": len(vectors["golden_td"]),
        "CYCLES": 1 + sum(i.cycles(learner.shape) for i in program),
    }
    text = readme(learner, sizes, counts["CYCLES"])
    return make_files("engine", sizes | counts, vectors, text)


def readme(learner: LearnerProgram, sizes: Mapping[str, int], cycles: int) -> str:
    """Return the README of the folder: contents, interfaces, commands."""
    n, p = learner.shape.array, learner.shape.lanes
    nets = ", ".join(f"{k} {'-'.join(map(str, v.widths))}" for k, v in learner.nets.items())
    parts = f" in sub-batches of {learner.rows} rows" if len(learner.sub_batches) > 1 else ""
    return f"""# A learner in Verilog

Networks: {nets}; batch {learner.batch}{parts}{", double" if learner.double else ""}. Array of {n} × {n} float32
multiply-accumulates, {p} lanes of Adam, {learner.blocks()} DSP blocks with hard float32 of latency {learner.shape.latency}.
{needs_of(learner_logic(learner.shape, learner.action > 0), learner_memories(learner))}
A gradient step takes {learner.cycles:,} cycles; {learner.beats} of them read rows of the batch stream. The clock rate is
unknown: the design was simulated, not placed and routed.

## Files
`engine.v` is the top module. `boxes.v` declares the float32 blocks as black boxes: replace them by the hard block of
your FPGA (float32, products rounded before the sum, subnormal numbers flushed to zero). `float32.v` has the same
blocks in plain Verilog, for simulation. `parameters.vh` has the parameters, `tanh.hex` the table of tanh.

## Interfaces of `engine`
| port | meaning |
|---|---|
| `program_we`, `program_at`, `program_data` | writes one instruction of 256 bits |
| `set_we`, `set_at`, `set_data` | writes a setting, float32, 0 to 9: {", ".join(SETTINGS)} |
| `rst` | hold high for {8 * learner.shape.latency + 64} cycles after power-up, the length of the delay lines |
| `start`, `start_at`, `idle` | runs the program from an instruction until halt |
| `in_valid`, `in_ready`, `in_data` | the batch stream, {learner.stream_words} words a row, lowest word first: for each sub-batch, observations and next observations in blocks of {n} × {n} and one row per sample (reward, discount, weight, action); one row per network (size = rate / (1 - b1^t), root = 1 / sqrt(1 - b2^t), mode of the target: 0 kept, 1 copied, 2 moved by tau). With several sub-batches, DDPG reads the observations again before the row of its second network |
| `out_valid`, `out_data` | rows of a store instruction |
| `td_valid`, `td` | absolute TD error of each sample; for an actor's loss, its value |

## Check it
The test bench loads random parameters and takes one gradient step. It compares parameters, targets and TD errors
with the golden vectors, and the cycles with {cycles:,}. If all are equal, it prints PASS.
{write_commands("engine", sizes)}
"""
