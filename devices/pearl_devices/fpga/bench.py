"""`SimulatedEngine`: the learner's Verilog in simulation, with the interface of a host driver."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl_devices.fpga.learner import LearnerProgram, transfer
from pearl_devices.fpga.program import PROGRAM_WORDS, Instruction
from pearl_devices.fpga.simulation import built, loaded, log2

Array = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Arrays = Mapping[str, npt.NDArray[Any]]
"""Arrays of a kernel by name."""

NO_STALLS = (0,) * 16
SETTINGS = ("b1", "r1", "b2", "r2", "eps", "tau", "clip", "delta", "inv_rows", "actor_slope")


def parameters(learner: LearnerProgram) -> dict[str, int]:
    """Return the parameters of `rtl/engine.v` for a learner."""
    n, p = learner.shape.array, learner.shape.lanes
    return {
        "N": n, "LN": log2(n), "P": p, "LP": log2(n // p), "L": learner.shape.latency,
        "BLOCKS_A": learner.blocks_a, "BLOCKS_B": learner.blocks_b, "BLOCKS_W": learner.blocks_w,
        "HEADS": learner.heads, "SAMPLES": -(-learner.rows // n) * n, "PROGRAM": PROGRAM_WORDS,
        "ACTOR": int(learner.action > 0), "BW": learner.stream_words,
    }  # fmt: skip


class SimulatedEngine:
    """A simulated engine. library: replaces the build for `parameters(learner)`, in tests."""

    def __init__(self, learner: LearnerProgram, library: Path | None = None) -> None:
        self.learner = learner
        n = learner.shape.array
        path = library or built("engine", parameters(learner), learner.shape.latency, n)
        self._library = loaded(path)
        self._library.engine_make.restype = ctypes.c_void_p
        self._library.engine_run.restype = ctypes.c_long
        self._engine = ctypes.c_void_p(self._library.engine_make())

    def close(self) -> None:
        """Free the engine, which must not be used afterwards."""
        self._library.engine_free(self._engine)

    def program(self, instructions: Sequence[Instruction]) -> None:
        """Write a program to address 0."""
        if len(instructions) > PROGRAM_WORDS:
            raise ValueError(f"{len(instructions)} instructions; the engine holds {PROGRAM_WORDS}")
        for at, instruction in enumerate(instructions):
            words = np.frombuffer(instruction.word().to_bytes(32, "little"), np.uint32).copy()
            self._library.engine_program(self._engine, at, words.ctypes)

    def set(self, settings: Mapping[str, float]) -> None:
        """Set constants of the update by name, rounded to float32."""
        for name, value in settings.items():
            word = int(np.float32(value).view(np.uint32))
            self._library.engine_set(self._engine, SETTINGS.index(name), ctypes.c_uint32(word))

    def run(self, stream: Words, stalls: Sequence[int] = NO_STALLS) -> tuple[int, Words, Words]:
        """Run the program and return (cycles, output rows, words of `td`).

        stream (beats, words of a row): beat i comes stalls[i % 16] cycles after the engine waits.
        """
        stream = np.ascontiguousarray(stream, np.uint32)
        n = self.learner.shape.array
        out, td = np.zeros((1 << 16, n), np.uint32), np.zeros(1 << 13, np.uint32)
        counts = (ctypes.c_long(), ctypes.c_long())
        waits = (ctypes.c_int * 16)(*stalls)
        cycles = self._library.engine_run(
            self._engine, 0, stream.ctypes, ctypes.c_long(len(stream)),
            stream.shape[1], waits, out.ctypes, ctypes.byref(counts[0]),
            td.ctypes, ctypes.byref(counts[1]), ctypes.c_long(len(td)),
            ctypes.c_long(50_000_000),
        )  # fmt: skip
        if cycles < 0:
            raise RuntimeError("the simulated engine did not end its program")
        return int(cycles), out[: counts[0].value], td[: counts[1].value]

    def load(self, place: str, vectors: Mapping[str, Array]) -> int:
        """Write parameters (place B), targets (T) or moments (M, V) of all networks; return the
        cycles."""
        self.program(transfer(self.learner, "load", place))
        return self.run(stream_of(self.learner, rows_of(self.learner, vectors)))[0]

    def store(self, place: str) -> tuple[int, Words]:
        """Read parameters, targets or moments of all networks; return cycles and rows."""
        self.program(transfer(self.learner, "store", place))
        return self.run(np.zeros((0, self.learner.stream_words), np.uint32))[:2]


def tiles(matrix: Array, n: int) -> list[Words]:
    """Return the rows of a matrix in the order of the engine: tile by tile, padded to n words."""
    rows, columns = matrix.shape
    padded = np.zeros((rows, -(-columns // n) * n), np.uint32)
    padded[:, :columns] = np.ascontiguousarray(matrix, np.float32).view(np.uint32)
    return [
        padded[r, c : c + n]
        for first in range(0, rows, n)
        for c in range(0, padded.shape[1], n)
        for r in range(first, min(first + n, rows))
    ]


def rows_of(learner: LearnerProgram, vectors: Mapping[str, Array]) -> list[Words]:
    """Return the parameters (or targets, moments) of all networks as rows of the stream.

    vectors: network → flat vector.
    """
    rows = list[Words]()
    for name, net in learner.nets.items():
        flat = vectors[name]
        for i, o in pairwise(net.widths):
            layer, flat = np.split(flat, [(i + 1) * o])
            rows += tiles(layer.reshape(i + 1, o), learner.shape.array)
    return rows


def make_settings(learner: LearnerProgram, arrays: Arrays) -> dict[str, float]:
    """Return the settings of an engine for the hyper-parameters of a gradient step."""
    beta1, beta2, eps = arrays["hyper.adam"]
    tau, clip, huber = (arrays[f"hyper.{name}"][0] for name in ("tau", "clip_norm", "huber"))
    return {
        "b1": beta1, "r1": 1 - beta1, "b2": beta2, "r2": 1 - beta2, "eps": eps, "tau": tau,
        "clip": clip, "delta": huber, "inv_rows": 1 / learner.batch,
        "actor_slope": -float(np.float32(1 / learner.batch)),
    }  # fmt: skip


def make_bound_rows(arrays: Arrays) -> list[Words]:
    """Return the rows of the bounds of actions: midpoints, half-widths."""
    half = np.float32(0.5) * (arrays["act.high"] - arrays["act.low"])
    return [(arrays["act.low"] + half).view(np.uint32), half.view(np.uint32)]


def stream_of(learner: LearnerProgram, rows: Sequence[Words]) -> Words:
    """Return rows in the format of the batch stream."""
    stream = np.zeros((len(rows), learner.stream_words), np.uint32)
    for at, row in enumerate(rows):
        stream[at, : len(row)] = row
    return stream


def batch_stream(learner: LearnerProgram, arrays: Arrays, step: int) -> Words:
    """Return the stream of a gradient step on the first batch of the arrays.

    step: number of the gradient step, from 1. The last word of a network's row is the mode of the
    target: 0 keeps the target network, 1 copies the parameters, 2 moves the target by tau.
    """
    n, rows = learner.shape.array, list[Words]()
    names = ("obs", "action", "reward", "next_obs", "discount", "weight")
    obs, action, reward, ahead, discount, weight = (arrays[f"batch.{name}"][0] for name in names)
    discrete = learner.action == 0
    if not discrete:
        obs = np.concatenate([obs, action], axis=1)
        ahead = np.concatenate([ahead, np.zeros_like(action)], axis=1)
    for part in learner.sub_batches:
        rows += tiles(obs[part], n) + tiles(ahead[part], n)
        for b in part:
            values = np.array([reward[b], discount[b], weight[b]], np.float32).view(np.uint32)
            rows.append(np.append(values, np.uint32(action[b] if discrete else 0)))
    beta1, beta2, _ = arrays["hyper.adam"]
    every = arrays["hyper.target_every"][0]
    mode = int(step % every == 0) if every else 2
    for number, net in enumerate(learner.nets):
        if number and learner.rows_again:
            rows += [row for part in learner.sub_batches for row in tiles(obs[part], n)]
        size = arrays[f"hyper.lr.{net}"][0] / (1 - beta1**step)
        values = np.array([size, 1 / np.sqrt(1 - beta2**step)], np.float32).view(np.uint32)
        rows.append(np.append(values, np.uint32(mode)))
    return stream_of(learner, rows)


BOUNDS = (Instruction("load", where=7, rl=2), Instruction("halt"))
"""The program that loads the bounds of actions: a row of midpoints, a row of half-widths."""
