"""The simulated FPGA's learner: register-transfer code, its twin, and the forms of its cycles.

Bits and cycles are compared without tolerance. One library an array serves all tests: its memories
are larger than any of them needs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl_devices import kernel
from pearl_devices.buffers import allocate
from pearl_devices.fpga import bind
from pearl_devices.fpga.bench import (
    BOUNDS,
    NO_STALLS,
    SimulatedEngine,
    batch_stream,
    make_bound_rows,
    make_settings,
    parameters,
    rows_of,
    stream_of,
    tiles,
)
from pearl_devices.fpga.export import PARTS, draw, fill
from pearl_devices.fpga.learner import LearnerProgram, acting, ddpg, dqn, transfer
from pearl_devices.fpga.program import Instruction, Shape
from pearl_devices.fpga.simulation import (
    built,
    loaded,
    missing,
)

pytestmark = pytest.mark.slow
rtl = pytest.mark.skipif(bool(missing()), reason=missing())

SHAPES = {2: Shape(2, 1), 4: Shape(4, 1), 8: Shape(8, 2)}
BETA1, BETA2, EPS, RATE, TAU = 0.9, 0.999, 1e-8, 1e-3, 0.01
HALT = Instruction("halt")


@cache
def library(array: int, change: tuple[str, str, str] | None = None, latency: int = 4) -> Path:
    """The engine of this array with room for all tests; change: (file, text, text in its place)."""
    learner = dqn((4, 64, 64, 2), 32, True, SHAPES[8]) if array == 8 else small(array)
    sizes = {} if array == 8 else {"BLOCKS_A": 160, "BLOCKS_B": 160, "BLOCKS_W": 64, "HEADS": 64}
    sizes |= {"ACTOR": int(array == 4), "SAMPLES": 32, "L": latency}
    changes = {change[0]: change[1:]} if change else None
    return built("engine", {**parameters(learner), **sizes}, latency, array, changes)


def small(array: int) -> LearnerProgram:
    return dqn((4, 8, 8, 2), 4, True, SHAPES[array])


class Run:
    """An update of the twin and of the register-transfer code from the same numbers."""

    def __init__(
        self,
        learner: LearnerProgram,
        *,
        every: float = 0,
        huber: float = 1.0,
        clip: float = 10.0,
        seed: int = 0,
        path: Path | None = None,
    ) -> None:
        self.learner, self.rng = learner, np.random.default_rng(seed)
        batch, obs, act = learner.batch, learner.observation, learner.action
        widths = {name: net.widths for name, net in learner.nets.items()}
        double = {} if act else {"double": int(learner.double)}
        self.kernel = kernel(
            "update.ddpg" if act else "update.dqn",
            {"obs": obs, "act": act, "batch": batch, "steps": 1, **widths, **double},
        )
        self.arrays = arrays = allocate([self.kernel])
        fill(learner, arrays, self.rng)
        for name, value in {"target_every": every, "clip_norm": clip, "huber": huber}.items():
            arrays[f"hyper.{name}"][:] = value
        self.call = bind(self.kernel, learner.name, arrays)
        self.engine = SimulatedEngine(learner, path or library(learner.shape.array))
        for place in PARTS:
            self.engine.load(place, self.parts(place))
        self.engine.set(make_settings(learner, arrays))
        if act:
            self.engine.program(BOUNDS)
            self.engine.run(stream_of(learner, make_bound_rows(arrays)))
        self.engine.program(learner.program)
        self.steps = 0

    def parts(self, place: str) -> dict[str, Any]:
        """The twin's parameters, targets or moments."""
        return {net: self.arrays[f"learner.{net}{PARTS[place]}"] for net in self.learner.nets}

    def step(self, stalls: tuple[int, ...] = NO_STALLS) -> tuple[int, Any]:
        """One gradient step of both: (cycles, what `td` brought)."""
        draw(self.learner, self.arrays, self.rng)
        self.steps += 1
        stream = batch_stream(self.learner, self.arrays, self.steps)
        cycles, _, td = self.engine.run(stream, stalls)
        self.call()
        return cycles, td.view(np.float32)

    def differences(self) -> list[str]:
        """The places in which both differ in any bit."""
        found = [
            place
            for place in PARTS
            if not np.array_equal(
                self.engine.store(place)[1], rows_of(self.learner, self.parts(place))
            )
        ]
        self.engine.program(self.learner.program)
        return found


def agree(run: Run, steps: int) -> None:
    """Both compute the same bits in the cycles of the forms."""
    for _ in range(steps):
        cycles, td = run.step()
        assert cycles == run.learner.cycles
        samples = run.learner.batch
        assert np.array_equal(td[:samples], run.arrays["batch.td"][0])
        if run.learner.action:
            mean = -td[samples:].astype(np.float64).mean()
            assert run.arrays["loss.actor"][0] == pytest.approx(mean)
        assert run.differences() == []
    run.engine.close()


@rtl
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(
    ("every", "huber", "clip"), [(0, 1.0, 10.0), (2, 0.3, 0.05), (0, 0.0, 0.0)]
)
def test_a_gradient_step_of_dqn(double, every, huber, clip):
    learner = dqn((4, 8, 8, 2), 4, double, SHAPES[4])
    agree(Run(learner, every=every, huber=huber, clip=clip), 3)


@rtl
@pytest.mark.parametrize("learner", [
    # networks that fill no tile
    *(dqn(w, n, True, SHAPES[4]) for w in ((3, 4), (5, 7, 3), (8, 12, 4)) for n in (1, 6)),
    *(dqn((4, 64, 64, 2), 32, double, SHAPES[8]) for double in (True, False)),
])  # fmt: skip
def test_a_gradient_step_of_networks_of_other_sizes(learner):
    agree(Run(learner), 2)


@rtl
@pytest.mark.parametrize(
    ("actor", "critic", "batch"),
    [((3, 16, 1), (4, 16, 1), 4), ((3, 8, 3), (6, 9, 5, 1), 6), ((7, 5, 4), (11, 1), 3)],
)
def test_a_gradient_step_of_ddpg(actor, critic, batch):
    agree(Run(ddpg(actor, critic, batch, SHAPES[4]), huber=0.0), 3)


@rtl
@pytest.mark.parametrize(
    "learner",
    [
        dqn((4, 8, 8, 2), 10, True, SHAPES[4], 4), dqn((5, 7, 3), 12, False, SHAPES[4], 8),
        ddpg((3, 16, 1), (4, 16, 1), 6, SHAPES[4], 4), dqn((4, 64, 64, 2), 32, True, SHAPES[8], 8),
    ],
    ids=["ragged", "plain", "ddpg", "shipped"],
)  # fmt: skip
def test_a_batch_in_sub_batches_gives_the_bits_of_the_whole_batch(learner):
    """The twin takes the batch whole: sums go on from one sub-batch to the next in their order."""
    assert len(learner.sub_batches) > 1
    agree(Run(learner, huber=0.0, clip=0.05), 2)


@rtl
@pytest.mark.parametrize(
    "change",
    [
        ("engine.v", "wire on = issue & variant", "wire on = issue & acol"),
        ("engine.v", "emit2 & to_g & !waits", "emit2 & to_g"),
    ],
    ids=["no sums go on", "norm of parts"],
)
def test_wrong_sums_of_sub_batches_are_seen(change):
    learner = dqn((4, 8, 8, 2), 8, True, SHAPES[4], 4)
    run = Run(learner, clip=0.05, path=library(4, change))
    run.step()
    assert run.differences() != []


@rtl
def test_a_stream_that_stalls_takes_its_stalls_longer_and_changes_no_bit():
    run = Run(small(4))
    stalls = (0, 1, 2, 0, 0, 5, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0)
    cycles, _ = run.step(stalls)
    assert cycles == run.learner.cycles + sum(stalls[: run.learner.beats])
    assert run.differences() == []


@rtl
def test_one_bit_of_a_weight_is_seen():
    run = Run(small(4))
    run.arrays["learner.q"].view(np.uint32)[7] ^= 1
    run.step()
    assert "B" in run.differences()


@rtl
@pytest.mark.parametrize(
    ("change", "latency", "seen"),
    [
        (("engine.v", "D(N + L + 1)", "D(N + L + 2)"), 4, "bits"),
        (("engine.v", "k_lane = kk[LN-1:0]", "k_lane = ~kk[LN-1:0]"), 4, "bits"),
        (None, 5, "cycles"),
    ],
    ids=["wrong latency", "wrong order of the sum", "slower block"],
)
def test_a_wrong_design_is_seen(change, latency, seen):
    run = Run(small(4), path=library(4, change, latency))
    cycles, _ = run.step()
    assert (run.differences() != []) == (seen == "bits")
    if seen == "cycles":
        assert cycles == replace(run.learner, shape=Shape(4, 1, 5)).cycles != run.learner.cycles


def flush(x: Any) -> Any:
    return np.where(np.abs(x) < np.float32(1.17549435e-38), np.float32(0), x).astype(np.float32)


def product(a: Any, b: Any) -> Any:
    """A · B, terms rounded and added in their order."""
    a, b = flush(a), flush(b)
    total = flush(np.outer(a[:, 0], b[0]))
    for k in range(1, len(b)):
        total = flush(total + flush(np.outer(a[:, k], b[k])))
    return total


def products(array: int) -> Iterator[tuple[Any, Any, bool, bool]]:
    """Random operands with subnormal and cancelling numbers: (A, B, A by column, B by row)."""
    rng = np.random.default_rng(array)
    for _ in range({2: 500, 4: 500, 8: 100}[array]):
        m, n = rng.integers(1, 4 * array, 2)
        k = int(rng.integers(1, 5 * array))
        a = rng.normal(size=(m, k)) * 10.0 ** rng.choice([0, 0, -25, -38], (m, k))
        b = rng.normal(size=(k, n)) * 10.0 ** rng.choice([0, 0, -13, 3], (k, n))
        yield (
            a.astype(np.float32), b.astype(np.float32), bool(rng.random() < 0.5),
            bool(rng.random() < 0.5),
        )  # fmt: skip


@rtl
@pytest.mark.parametrize("array", [2, 4, 8])
def test_products_of_all_shapes_read_both_ways(array):
    learner = small(array)
    engine = SimulatedEngine(learner, library(array))
    for a, b, acol, brow in products(array):
        (m, k), n = a.shape, b.shape[1]
        left, right = (a if acol else a.T), (b if brow else b.T)
        down, across = -(-m // array), -(-n // array)

        def load(place: int, matrix: Any) -> Instruction:
            rows, columns = matrix.shape
            return Instruction(
                "load", where=place, rt=-(-rows // array), ct=-(-columns // array),
                rl=(rows - 1) % array + 1,
            )  # fmt: skip

        deep = -(-k // array)
        multiply = Instruction(
            "mul", where=2, k=k, rt=down, ct=across, rl=(m - 1) % array + 1, cl=(n - 1) % array + 1,
            acol=acol, a_sr=deep if acol else 1, a_sk=1 if acol else down,
            brow=brow, b_sc=1 if brow else deep, b_sk=across if brow else 1, dbase2=100,
        )  # fmt: skip
        store = Instruction("store", where=1, rt=down, ct=across, rl=multiply.rl, dbase=100)
        program = (load(0, left), load(1, right), multiply, store, HALT)
        engine.program(program)
        rows = [
            *tiles(np.ascontiguousarray(left), array),
            *tiles(np.ascontiguousarray(right), array),
        ]
        cycles, out, _ = engine.run(stream_of(learner, rows))
        assert cycles == 1 + sum(i.cycles(learner.shape) for i in program)
        wanted = np.array(tiles(product(a, b), array))
        assert np.array_equal(out, wanted), (m, k, n, acol, brow)
    engine.close()


def quotients(x: Any, y: Any, change: dict[str, tuple[str, str]] | None = None) -> Any:
    """x / y of the divider in Verilog, both as words."""
    found = np.zeros(len(x), np.uint32)
    library = loaded(built("fdiv", {}, 0, 0, change))
    library.fdiv_run(ctypes.c_long(len(x)), x.ctypes, y.ctypes, found.ctypes)
    return found


@rtl
def test_a_quotient_just_below_the_least_normal_number_rounds_up_as_numpy_does():
    """All digits 1 over a power of two is the one quotient there that rounds to a normal number;
    others around it are 0 where they are subnormal."""
    rng, count = np.random.default_rng(3), 20_000
    exponents = np.arange(1, 128, dtype=np.uint32)
    corner = [exponents << 23 | 0x7FFFFF, (exponents + 127) << 23]
    corner[0][::2] |= np.uint32(1 << 31)
    above = rng.integers(1, 125, count).astype(np.uint32)
    near = [
        above << 23 | rng.integers(0, 1 << 23, count).astype(np.uint32),
        (above + rng.integers(124, 130, count).astype(np.uint32)) << 23
        | rng.choice([0, 1, 0x7FFFFF, 0x400000], count).astype(np.uint32),
    ]
    x, y = (np.concatenate(words) for words in zip(corner, near, strict=True))
    wanted = flush(x.view(np.float32) / y.view(np.float32)).view(np.uint32)
    assert (wanted[: len(exponents)] & 0x7FFFFFFF == 1 << 23).all()
    assert np.array_equal(quotients(x, y), wanted)
    unfixed = quotients(x, y, {"divide.v": (" & !least", "")})
    assert np.flatnonzero(unfixed != wanted).tolist() == list(range(len(exponents)))


@rtl
def test_adam_over_a_hundred_thousand_values():
    """Gradients are products of one column and one row, from 1e-44 to 100; some are 0."""
    from pearl_devices.primitives.fpga.passes import adam

    array, rng = 4, np.random.default_rng(5)
    learner = dqn((255, 4), 4, False, SHAPES[4])
    engine, size = SimulatedEngine(learner, library(array)), 256 * 4
    state = {p: np.zeros(size, np.float32) for p in "BTMV"}
    state["B"][:], state["T"][:] = rng.normal(size=(2, size))
    for place, flat in state.items():
        engine.load(place, {"q": flat})
    engine.set({"b1": BETA1, "r1": 1 - BETA1, "b2": BETA2, "r2": 1 - BETA2, "eps": EPS, "tau": TAU})
    engine.set({"clip": 0.0})
    load = [
        Instruction("load", where=0, rt=1, ct=64, rl=1),
        Instruction("load", where=1, rt=1, ct=1, rl=1, dbase=64),
        Instruction("load", where=6),
    ]
    program = (
        *load,
        Instruction(
            "mul", where=4, k=1, rt=64, ct=1, rl=4, cl=4, a_sr=1, a_sk=64, bbase=64, b_sc=1, b_sk=1,
            brow=True,
        ),
        Instruction("norm"), Instruction("adam", rt=64, ct=1, rl=4, waits=True), HALT,
    )  # fmt: skip
    engine.program(program)
    hyper, passes = np.array([BETA1, BETA2, EPS]), 98
    assert passes * size >= 100_000
    for step in range(1, passes + 1):
        column = rng.normal(size=256) * 10.0 ** rng.integers(-22, 2, 256)
        row = rng.normal(size=4) * 10.0 ** rng.integers(-22, 1, 4)
        row[rng.integers(4)] = 0.0
        left, right = (np.array(x, np.float32).reshape(1, -1) for x in (column, row))
        root, rate_ = 1 / np.sqrt(1 - BETA2**step), RATE / (1 - BETA1**step)
        constants = np.array([rate_, root], np.float32).view(np.uint32)
        stream = [*tiles(left, array), *tiles(right, array), np.append(constants, np.uint32(2))]
        cycles, _, _ = engine.run(stream_of(learner, stream))
        assert cycles == 1 + sum(i.cycles(learner.shape) for i in program)
        gradient = product(left.T, right).reshape(-1)
        adam(
            state["B"], state["T"], gradient, state["M"], state["V"], step, RATE, hyper,
            np.float32(1.0), 2, np.float32(TAU),
        )  # fmt: skip
    for place, wanted in state.items():
        assert np.array_equal(engine.store(place)[1], rows_of(learner, {"q": wanted})), place
    engine.close()


@rtl
def test_a_forward_pass_alone():
    learner = acting((4, 8, 8, 2), 6, SHAPES[4])
    engine, rng = SimulatedEngine(learner, library(4)), np.random.default_rng(2)
    layers = [rng.normal(size=(i + 1, o)).astype(np.float32) for i, o in ((4, 8), (8, 8), (8, 2))]
    engine.load("B", {"q": np.concatenate([w.reshape(-1) for w in layers])})
    x = rng.normal(size=(6, 4)).astype(np.float32)
    engine.program(learner.program)
    cycles, out, _ = engine.run(stream_of(learner, tiles(x, 4)))
    assert cycles == learner.cycles
    for number, w in enumerate(layers):
        x = product(np.hstack([x, np.ones((6, 1), np.float32)]), w)
        x = np.maximum(x, 0) if number < 2 else x
    assert np.array_equal(out[:, :2].copy().view(np.float32), x)
    engine.close()


@rtl
def test_parameters_go_in_and_come_out_as_they_are_in_the_cycles_of_the_forms():
    learner = small(4)
    engine = SimulatedEngine(learner, library(4))
    flat = np.random.default_rng(1).normal(size=5 * 8 + 9 * 8 + 9 * 2).astype(np.float32)
    for place in "BTMV":
        cycles = [engine.load(place, {"q": flat}), 0]
        cycles[1], found = engine.store(place)
        forms = [transfer(learner, op, place) for op in ("load", "store")]
        assert cycles == [1 + sum(i.cycles(learner.shape) for i in f) for f in forms]
        assert np.array_equal(found, rows_of(learner, {"q": flat}))
    engine.close()
