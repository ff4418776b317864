"""`SimulatedEngine`: the learner's Verilog in simulation, with the interface of a host driver."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pearl_devices.fpga.learner import LearnerProgram, transfer
from pearl_devices.fpga.program import PROGRAM_WORDS, Instruction
from pearl_devices.fpga.simulation import built, loaded, log2

Array = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

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
            self._library.engine_program(self._engine, at, words.ctypes.data_as(ctypes.c_void_p))

    def set(self, settings: Mapping[str, float]) -> None:
        """Set constants of the update by name, rounded to float32."""
        for name, value in settings.items():
            word = int(np.float32(value).view(np.uint32))
            self._library.engine_set(self._engine, SETTINGS.index(name), ctypes.c_uint32(word))

    def run(
        self, stream: Words, stalls: Sequence[int] = NO_STALLS, most: int = 1 << 20
    ) -> tuple[int, Words, Words]:
        """Run the program and return (cycles, output rows, words of `td`).

        stream (beats, words of a row): beat i comes stalls[i % 16] cycles after the engine waits.
        """
        stream = np.ascontiguousarray(stream, np.uint32)
        n = self.learner.shape.array
        out, td = np.zeros((min(most, 1 << 16), n), np.uint32), np.zeros(1 << 13, np.uint32)
        counts = (ctypes.c_long(), ctypes.c_long())
        waits = (ctypes.c_int * 16)(*stalls)
        pointer: Any = ctypes.c_void_p
        cycles = self._library.engine_run(
            self._engine, 0, stream.ctypes.data_as(pointer), ctypes.c_long(len(stream)),
            stream.shape[1], waits, out.ctypes.data_as(pointer), ctypes.byref(counts[0]),
            td.ctypes.data_as(pointer), ctypes.byref(counts[1]), ctypes.c_long(len(td)),
            ctypes.c_long(50_000_000),
        )  # fmt: skip
        if cycles < 0:
            raise RuntimeError("the simulated engine did not end its program")
        return int(cycles), out[: counts[0].value], td[: counts[1].value]

    def load(self, place: str, vectors: Mapping[str, Array]) -> int:
        """Write parameters (place B), targets (T) or moments (M, V) of all networks; return the
        cycles."""
        self.program(transfer(self.learner, "load", place))
        rows = [r for net, flat in vectors.items() for r in rows_of(self.learner, net, flat)]
        return self.run(stream_of(self.learner, rows))[0]

    def store(self, place: str) -> tuple[int, dict[str, Array]]:
        """Read parameters, targets or moments; return cycles and the flat vector per network."""
        self.program(transfer(self.learner, "store", place))
        cycles, rows, _ = self.run(np.zeros((0, self.learner.stream_words), np.uint32))
        found, at = {}, 0
        for name, net in self.learner.nets.items():
            flat = []
            for layer, w in enumerate(net.weights):
                down, across = net.widths[layer] + 1, net.widths[layer + 1]
                whole = np.zeros((down, w.across * self.learner.shape.array), np.uint32)
                for tile in range(w.down * w.across):
                    r, c = divmod(tile, w.across)
                    n = self.learner.shape.array
                    count = min(n, down - r * n)
                    whole[r * n : r * n + count, c * n : c * n + n] = rows[at : at + count]
                    at += count
                flat.append(whole[:, :across].reshape(-1))
            found[name] = np.concatenate(flat).view(np.float32)
        return cycles, found


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


def rows_of(learner: LearnerProgram, name: str, flat: Array) -> list[Words]:
    """Return the parameters of a network as rows of the stream."""
    net, rows, at = learner.nets[name], list[Words](), 0
    for i, o in zip(net.widths, net.widths[1:], strict=False):
        rows += tiles(flat[at : at + (i + 1) * o].reshape(i + 1, o), learner.shape.array)
        at += (i + 1) * o
    return rows


def stream_of(learner: LearnerProgram, rows: Sequence[Words]) -> Words:
    """Return rows in the format of the batch stream."""
    stream = np.zeros((len(rows), learner.stream_words), np.uint32)
    for at, row in enumerate(rows):
        stream[at, : len(row)] = row
    return stream


def batch_stream(
    learner: LearnerProgram, obs: Array, action: npt.NDArray[Any], reward: Array, next_obs: Array,
    discount: Array, weight: Array, steps: Sequence[tuple[float, float, int]],
) -> Words:  # fmt: skip
    """Return the stream of one gradient step.

    steps: (size, root, mode of the target) of each network, in the order of the program. Mode 0
    keeps the target network, 1 copies the parameters, 2 moves the target by tau.
    """
    n, rows = learner.shape.array, list[Words]()
    discrete = learner.action == 0
    ahead = next_obs
    if not discrete:
        obs = np.concatenate([obs, action.reshape(len(obs), -1)], axis=1)
        ahead = np.concatenate([next_obs, np.zeros_like(action).reshape(len(obs), -1)], axis=1)
    for part in learner.sub_batches:
        rows += tiles(obs[part], n) + tiles(ahead[part], n)
        for b in part:
            values = np.array([reward[b], discount[b], weight[b]], np.float32).view(np.uint32)
            rows.append(np.append(values, np.uint32(action[b] if discrete else 0)))
    for number, (size, root, mode) in enumerate(steps):
        if number and learner.rows_again:
            rows += [row for part in learner.sub_batches for row in tiles(obs[part], n)]
        values = np.array([size, root], np.float32).view(np.uint32)
        rows.append(np.append(values, np.uint32(mode)))
    return stream_of(learner, rows)


def bounds_program() -> tuple[Instruction, ...]:
    """Return the program that loads the bounds of actions: a row of midpoints, a row of
    half-widths."""
    return (Instruction("load", where=7, rl=2), Instruction("halt"))
