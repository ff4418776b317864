"""The simulated FPGA's integer sum tree: register-transfer code, its twin, and the forms of its
cycles."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pearl_devices import kernel
from pearl_devices.buffers import allocate
from pearl_devices.fpga.program import draw_cycles, set_cycles
from pearl_devices.fpga.resources import TreeEngine
from pearl_devices.fpga.simulation import built, missing
from pearl_devices.fpga.tree_bench import Tree
from pearl_devices.kernels.replay import tree_levels
from pearl_devices.primitives.fpga import tree as twin
from pearl_devices.primitives.math.rng import stream_base, uniform

rtl = pytest.mark.skipif(bool(missing()), reason=missing())
MOST = (1 << 20) - 1
ENGINES = {fanout: TreeEngine(n, fanout) for fanout, n in ((4, 200), (8, 3000), (16, 1000))}


@cache
def library(fanout: int, change: tuple[str, str] | None = None) -> Path:
    changes = {"tree.v": change} if change else None
    return built("tree", ENGINES[fanout].parameters(), 0, 0, changes)


def drawn(priorities: Any, prefixes: Any) -> Any:
    """The first leaf whose running sum is above the prefix."""
    return np.searchsorted(np.cumsum(priorities), prefixes, side="right")


def differs(tree: Tree, rounds: int, rng: Any, priorities: Any, most: int = 64) -> bool:
    """Whether rounds of sets and draws, repeated leaves among them, ever differ from the
    reference."""
    for _ in range(rounds):
        count = int(rng.integers(1, most))
        leaves = rng.integers(0, len(priorities), count)
        leaves[count // 2 :] = leaves[: count - count // 2]
        values = rng.choice([1, 2, 77, MOST], count) + rng.integers(0, 2, count) * 1000
        values = np.minimum(values, MOST)
        cycles = tree.set(leaves, values)
        assert cycles == set_cycles(tree.depth, count)
        for leaf, value in zip(leaves, values, strict=True):
            priorities[leaf] = value
        total = int(priorities.sum())
        if tree.total != total:
            return True
        prefixes = rng.integers(0, total, count)
        prefixes[0], prefixes[-1] = 0, total - 1
        cycles, found = tree.draw(prefixes)
        assert cycles == draw_cycles(tree.depth, count)
        if not np.array_equal(found, drawn(priorities, prefixes)):
            return True
    return False


@rtl
@pytest.mark.slow
@pytest.mark.parametrize("fanout", [4, 8, 16])
def test_a_hundred_rounds_of_draws_and_sets(fanout):
    tree = Tree(ENGINES[fanout], library(fanout))
    priorities = np.zeros(ENGINES[fanout].capacity, np.int64)
    assert not differs(tree, 100, np.random.default_rng(fanout), priorities)
    tree.close()


FULL = ("localparam V = W + (D - 1 - l) * LK;", "localparam V = W;")


@rtl
@pytest.mark.slow
def test_a_tree_whose_sums_have_no_more_bits_than_leaves_overflows_on_a_full_row():
    """A set on a row of which every child has the largest priority."""
    tree = Tree(ENGINES[4], library(4, FULL))
    leaves = list(range(4))
    tree.set(leaves[:1], [MOST])
    assert tree.total == MOST
    tree.set(leaves, [MOST] * 4)
    assert tree.total != 4 * MOST
    tree.close()
    whole = Tree(ENGINES[4], library(4))
    whole.set(leaves, [MOST] * 4)
    assert whole.total == 4 * MOST
    whole.close()


@rtl
@pytest.mark.slow
def test_sets_that_follow_too_soon_are_seen():
    """A set reads a row two cycles before the one ahead of it has written that row."""
    tree = Tree(ENGINES[4], library(4))
    tree.set([0, 1], [5, 7], apart=1)
    assert tree.total != 12
    tree.close()


CAPACITY, ENVS, BATCH = 200, 4, 16


def replay(capacity: int = CAPACITY) -> tuple[dict[str, Any], dict[str, Any]]:
    """The three kernels of a prioritised replay over one set of arrays."""
    sizes = {"envs": ENVS, "obs": 3, "act": 0, "capacity": capacity, "fanout": 4, "prioritised": 1}
    drawing = {"batch": BATCH, "steps": 2, "n_step": 1}
    kernels = {
        "insert": kernel("replay_insert", sizes),
        "sample": kernel("replay_sample", {**sizes, **drawing}),
        "set": kernel(
            "replay_update", {"capacity": capacity, "fanout": 4, "batch": BATCH, "steps": 2}
        ),
    }
    arrays = allocate(list(kernels.values()))
    arrays["replay.priority"][:] = 0.6, 0.01, 0.0
    arrays["replay.beta"][:] = 0.4, 1.0, 10.0
    arrays["rng.replay_sample"][:] = 11, 0
    return arrays, {name: twin.bind(k, arrays) for name, k in kernels.items()}


def leaves_of(arrays: dict[str, Any]) -> Any:
    capacity = arrays["replay.reward"].size
    return arrays["replay.tree"][-tree_levels(capacity, 4)[-1] :][:capacity]


def assert_sums_are_exact(arrays: dict[str, Any]) -> None:
    levels = tree_levels(arrays["replay.reward"].size, 4)
    below = arrays["replay.tree"][-levels[-1] :].astype(np.float64)
    for level, width in reversed(list(enumerate(levels[:-1]))):
        start = sum(levels[:level])
        sums = below.reshape(-1, 4).sum(axis=1)
        assert np.array_equal(arrays["replay.tree"][start : start + sums.size], np.float32(sums))
        below = np.pad(sums, (0, width - sums.size))


def prefixes_of(arrays: dict[str, Any], firing: int, total: int) -> list[int]:
    """The prefixes that a firing draws by, in whole numbers of any length."""
    base = np.uint64(stream_base(arrays["rng.replay_sample"][0], np.uint64(firing)))
    shares = ((b + uniform(base, b)) / BATCH for b in range(BATCH))
    return [int(share * 2**32) * total >> 32 for share in shares]


def test_the_twin_draws_by_exact_sums_and_any_other_replay_can_go_on():
    arrays, calls = replay(24)
    rng, firing, top = np.random.default_rng(0), 0, 1.0
    for turn in range(10):
        row = ENVS * turn % 24
        arrays["step.reward"][:] = turn
        calls["insert"]()
        units = min(round(top * twin.UNIT), MOST)
        assert (leaves_of(arrays)[row : row + ENVS] * twin.UNIT == units).all()
        assert (arrays["replay.reward"][row : row + ENVS] == turn).all()
        assert_sums_are_exact(arrays)
        priorities = np.rint(leaves_of(arrays).astype(np.float64) * twin.UNIT).astype(np.int64)
        wanted = [
            drawn(priorities, prefixes_of(arrays, firing + s, int(priorities.sum())))
            for s in (0, 1)
        ]
        arrays["replay.beta"][2] = 0.0 if turn == 9 else 10.0
        calls["sample"]()
        assert np.array_equal(arrays["batch.index"], wanted)
        assert np.array_equal(arrays["batch.reward"], arrays["replay.reward"][np.array(wanted)])
        for s in (0, 1):
            share = priorities[wanted[s]] / priorities[wanted[s]].min()
            exponent = 1.0 if turn == 9 else 0.4 + 0.6 * min((firing + s) / 10, 1)
            assert arrays["batch.weight"][s] == pytest.approx(share**-exponent, rel=1e-4)
        firing += 2
        td = rng.normal(size=(2, BATCH)) * 10.0 ** rng.integers(-9, 2, (2, BATCH))
        arrays["batch.td"][:] = td
        arrays["batch.td"][1, 3] = (0.0, 1e6)[turn == 7]
        calls["set"]()
        given = (np.abs(arrays["batch.td"].astype(float)) + 0.01) ** 0.6
        most = max(top, *np.minimum(given, MOST / twin.UNIT).ravel())
        last = dict(zip(np.ravel(wanted), given.ravel(), strict=True))
        units = np.clip(np.array(list(last.values())) * twin.UNIT, 1, MOST)
        np.testing.assert_allclose(
            leaves_of(arrays)[list(last)] * twin.UNIT, units, rtol=1e-5, atol=0.51
        )
        top = float(arrays["replay.priority"][2])
        assert top == pytest.approx(most, rel=1e-4)
        assert_sums_are_exact(arrays)
    assert arrays["replay.cursor"].tolist() == [16, 24]


@rtl
@pytest.mark.slow
def test_the_twin_and_the_tree_in_verilog_draw_the_same_rows():
    arrays, calls = replay()
    tree, rng = Tree(ENGINES[4], library(4)), np.random.default_rng(1)
    for firing in range(0, 40, 2):
        row = int(arrays["replay.cursor"][0])
        calls["insert"]()
        rows = np.arange(row, row + ENVS)
        tree.set(rows, np.rint(leaves_of(arrays)[rows].astype(np.float64) * twin.UNIT))
        found = [tree.draw(prefixes_of(arrays, firing + s, tree.total))[1] for s in (0, 1)]
        calls["sample"]()
        assert np.array_equal(arrays["batch.index"], found)
        arrays["batch.td"][:] = rng.normal(size=(2, BATCH))
        calls["set"]()
        index = arrays["batch.index"].reshape(-1)
        tree.set(index, np.rint(leaves_of(arrays)[index].astype(np.float64) * twin.UNIT))
        assert tree.total == round(float(leaves_of(arrays).astype(np.float64).sum()) * twin.UNIT)
    tree.close()


def test_a_tree_that_another_replay_wrote_is_taken_over_rounded():
    arrays, calls = replay(24)
    calls["insert"]()
    leaves_of(arrays)[:3] = 0.123456, 1e-9, 1e9
    arrays["replay.tree"][0] = 12345.0
    calls["sample"]()
    found = leaves_of(arrays)[:5].astype(np.float64) * twin.UNIT
    assert found.tolist() == [506, 1, MOST, 4096, 0]
    assert_sums_are_exact(arrays)
