"""Replay: ring, sum tree, sampling, n-step returns, weights, priorities, and the fused calls."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pearl.testing.kernel_buffers import fill_arrays
from pearl_devices import Buffers, Kernel, cpu, kernel
from pearl_devices.kernels.replay import tree_levels
from pearl_devices.primitives.math import rng
from pearl_devices.primitives.replay import sum_tree as sum_tree

ENVS, CAPACITY, FANOUT, DRAWN = 3, 36, 4, 16


def ring(prioritised: int = 1, capacity: int = CAPACITY, act: int = 0) -> dict[str, Any]:
    return {
        "envs": ENVS, "obs": 2, "act": act, "capacity": capacity, "prioritised": prioritised,
        "fanout": FANOUT,
    }  # fmt: skip


def sample_kernel(n_step: int = 1, steps: int = 1, **changes: int) -> Kernel:
    return kernel("replay_sample", n_step=n_step, steps=steps, batch=DRAWN, **ring(**changes))


def leaves(buffers: Buffers, capacity: int = CAPACITY, fanout: int = FANOUT) -> np.ndarray:
    width = tree_levels(capacity, fanout)[-1]
    out: np.ndarray = buffers["replay.tree"][-width:]
    return out


def write(buffers: Buffers, insert: Any, time: int, ends: dict[tuple[int, int], str]) -> None:
    """Inserts the transitions of one step; each carries its time and environment."""
    for e in range(ENVS):
        buffers["step.obs"][e] = (time, e)
        buffers["step.next_obs"][e] = (time + 1, e)
        buffers["step.reward"][e] = 1 + 10 * time + e
        buffers["step.action"][e] = time % 2
        buffers["step.terminated"][e] = ends.get((time, e)) in ("terminated", "both")
        buffers["step.truncated"][e] = ends.get((time, e)) in ("truncated", "both")
    insert()


def stored(
    steps: int, ends: dict[tuple[int, int], str] | None = None, n_step: int = 1, **changes: int
) -> tuple[Buffers, Any]:
    """A replay after `steps` steps, and the bound sample."""
    sample, insert = sample_kernel(n_step, **changes), kernel("replay_insert", **ring(**changes))
    buffers = fill_arrays([insert, sample])
    call = cpu.bind(insert, "native", buffers)
    for time in range(steps):
        write(buffers, call, time, ends or {})
    return buffers, cpu.bind(sample, "native", buffers)


# The tree


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(2, 700), fanout=st.sampled_from([2, 3, 4, 8, 16]),
    seed=st.integers(0, 2**32 - 1), sparse=st.booleans(),
)  # fmt: skip
def test_the_tree_finds_what_searchsorted_finds_in_the_cumulative_sum(
    capacity: int, fanout: int, seed: int, sparse: bool
) -> None:
    random = np.random.default_rng(seed)
    widths = np.array(tree_levels(capacity, fanout), np.int64)
    tree = np.zeros(widths.sum(), np.float32)
    values = random.integers(0 if sparse else 1, 9, capacity)  # whole numbers: exact sums
    values[random.integers(capacity)] = 3
    first = tree.size - widths[-1]
    tree[first : first + capacity] = values
    half = capacity // 2
    sum_tree.raise_range(tree, widths, fanout, 0, half)
    sum_tree.raise_leaves(tree, widths, fanout, random.permutation(np.arange(half, capacity)))
    total = values.sum()
    assert tree[0] == total
    cumulative = np.cumsum(values)
    for prefix in [*random.integers(0, total, 20), 0, total - 1]:
        found = sum_tree.find_leaf(tree, widths, fanout, float(prefix))
        assert found == np.searchsorted(cumulative, prefix, side="right")


@pytest.mark.parametrize("fanout", [8, 16])
def test_vectors_of_children_choose_what_the_children_one_by_one_choose(fanout: int) -> None:
    random, widths = np.random.default_rng(7), np.array([1, fanout], np.int64)
    for _ in range(300):
        tree = random.integers(0, 5, fanout + 1).astype(np.float32)
        tree[random.random(tree.size) < 0.4] = 0
        tree[0] = sum_tree.sum_children(tree, 1, fanout)
        assert tree[0] == tree[1:].sum()
        for prefix in [0.0, float(tree[0]), np.inf, *(random.random(4) * tree[0])]:
            one, _ = sum_tree.choose_child(tree, 1, fanout, prefix)
            assert sum_tree.find_leaf(tree, widths, fanout, prefix) == one


@pytest.mark.parametrize("fanout", [4, 5, 8, 16])
def test_four_descents_at_once_find_what_single_descents_find(fanout: int) -> None:
    random, widths = np.random.default_rng(8), np.array(tree_levels(5000, fanout), np.int64)
    tree = np.zeros(widths.sum(), np.float32)
    tree[-widths[-1] :][:5000] = random.random(5000)
    sum_tree.raise_range(tree, widths, fanout, 0, 4999)
    base, index = np.uint64(11), np.zeros(67, np.int64)
    sum_tree.find_strata(tree, widths, fanout, base, index)
    for b, found in enumerate(index):
        prefix = (b + rng.uniform(base, b)) / 67 * float(tree[0])
        assert found == sum_tree.find_leaf(tree, widths, fanout, prefix)


@settings(max_examples=40, deadline=None)
@given(
    priorities=st.lists(st.floats(2.0**-20, 2.0**20, width=32), min_size=1, max_size=60),
    capacity=st.integers(60, 300),
)
def test_a_prefix_at_or_beyond_the_total_never_finds_an_unfilled_leaf(
    priorities: list[float], capacity: int
) -> None:
    widths = np.array(tree_levels(capacity, 4), np.int64)
    tree = np.zeros(widths.sum(), np.float32)
    first = tree.size - widths[-1]
    tree[first : first + len(priorities)] = priorities
    sum_tree.raise_range(tree, widths, 4, 0, len(priorities) - 1)
    total = float(tree[0])
    for prefix in (0.0, np.nextafter(total, 0), total, 1.01 * total, np.inf):
        assert sum_tree.find_leaf(tree, widths, 4, prefix) < len(priorities)


def test_parents_are_sums_of_their_children_after_any_mixture_of_writes() -> None:
    buffers, _ = stored(steps=9)
    update = kernel("replay_update", batch=DRAWN, steps=1, capacity=CAPACITY, fanout=FANOUT)
    more = fill_arrays([update])
    buffers["batch.td"] = more["batch.td"]
    call = cpu.bind(update, "native", buffers)
    insert = cpu.bind(kernel("replay_insert", **ring()), "native", buffers)
    random = np.random.default_rng(0)
    for time in range(9, 60):
        write(buffers, insert, time, {})
        buffers["batch.index"][:] = random.integers(0, min(time * ENVS, CAPACITY), DRAWN)
        buffers["batch.td"][:] = random.exponential(size=(1, DRAWN))
        call()
    widths, start = tree_levels(CAPACITY, FANOUT), 0
    for above, below in pairwise(widths):
        parents = buffers["replay.tree"][start : start + above]
        start += above
        children = buffers["replay.tree"][start : start + below].reshape(-1, FANOUT)
        sums = children.sum(axis=1)
        np.testing.assert_allclose(parents[: sums.size], sums, rtol=1e-6)
        assert not parents[sums.size :].any()
    assert (leaves(buffers)[:CAPACITY] > 0).all()


# The ring


def test_rows_are_time_by_environment_and_the_ring_overwrites_the_oldest() -> None:
    steps = CAPACITY // ENVS + 5
    buffers, _ = stored(steps)
    assert buffers["replay.cursor"].tolist() == [5 * ENVS, CAPACITY]
    for row in range(CAPACITY):
        time = row // ENVS + (CAPACITY // ENVS if row < 5 * ENVS else 0)
        assert buffers["replay.obs"][row].tolist() == [time, row % ENVS]
        assert buffers["replay.reward"][row] == 1 + 10 * time + row % ENVS


def test_new_rows_get_the_largest_priority_so_far() -> None:
    buffers, _ = stored(steps=4)
    assert set(leaves(buffers)[: 4 * ENVS]) == {1.0}
    assert not leaves(buffers)[4 * ENVS :].any()
    update = kernel("replay_update", batch=DRAWN, steps=1, capacity=CAPACITY, fanout=FANOUT)
    buffers["batch.td"] = np.full((1, DRAWN), 5.0, np.float32)
    buffers["batch.index"][:] = np.arange(DRAWN) % (4 * ENVS)
    cpu.bind(update, "native", buffers)()
    top = (5.0 + 1e-2) ** 0.6
    assert buffers["replay.priority"][2] == pytest.approx(top)
    buffers["batch.td"][:] = 0.1
    cpu.bind(update, "native", buffers)()
    assert buffers["replay.priority"][2] == pytest.approx(top)
    write(buffers, cpu.bind(kernel("replay_insert", **ring()), "native", buffers), 4, {})
    np.testing.assert_allclose(leaves(buffers)[4 * ENVS : 5 * ENVS], top, rtol=1e-6)


def test_a_capacity_that_would_split_a_step_is_an_error() -> None:
    k = kernel("replay_insert", **ring(capacity=10))
    with pytest.raises(ValueError, match="multiple of envs 3"):
        cpu.bind(k, "native", fill_arrays([k]))


@pytest.mark.parametrize("prioritised", [0, 1])
def test_sampling_an_empty_replay_is_safe(prioritised: int) -> None:
    buffers, sample = stored(steps=0, prioritised=prioritised, n_step=3)
    sample()
    assert not buffers["batch.index"].any()
    assert (buffers["batch.weight"] == 1).all()
    assert np.isfinite(buffers["batch.reward"]).all()


# Sampling


def test_uniform_sampling_reaches_all_filled_rows_alike_with_weight_one() -> None:
    buffers, sample = stored(steps=5, prioritised=0)
    counts = np.zeros(CAPACITY)
    for _ in range(3000):
        sample()
        assert (buffers["batch.weight"] == 1).all()
        counts += np.bincount(buffers["batch.index"][0], minlength=CAPACITY)
    assert not counts[5 * ENVS :].any()
    expected = counts.sum() / (5 * ENVS)
    chi_square = ((counts[: 5 * ENVS] - expected) ** 2 / expected).sum()
    assert chi_square < 36.1  # 14 degrees of freedom, p = 0.001


def test_weights_follow_the_formula_and_beta_anneals_by_batches_drawn() -> None:
    buffers, sample = stored(steps=6)
    size, random = 6 * ENVS, np.random.default_rng(3)
    widths = np.array(tree_levels(CAPACITY, FANOUT), np.int64)
    leaves(buffers)[:size] = random.uniform(0.1, 3.0, size)
    sum_tree.raise_range(buffers["replay.tree"], widths, FANOUT, 0, size - 1)
    total = leaves(buffers).sum(dtype=np.float64)
    for firing in range(70):
        sample()
        beta = 0.4 + 0.6 * min(firing / 50, 1.0)
        p = leaves(buffers)[buffers["batch.index"][0]].astype(np.float64)
        weight = (size * p / total) ** -beta
        np.testing.assert_allclose(buffers["batch.weight"][0], weight / weight.max(), rtol=1e-5)


def naive(buffers: Buffers, row: int, n_step: int, gamma: float) -> tuple[float, float, int]:
    """(return, discount, row that is bootstrapped from), by the definition and in Python."""
    head, total = int(buffers["replay.cursor"][0]), 0.0
    newest = {(head - 1 - e) % CAPACITY for e in range(ENVS)}
    for m in range(n_step):
        total += gamma**m * float(buffers["replay.reward"][row])
        over = buffers["replay.terminated"][row] or buffers["replay.truncated"][row]
        if over or m == n_step - 1 or row in newest:
            break
        row = (row + ENVS) % CAPACITY
    return total, gamma ** (m + 1) * (not buffers["replay.terminated"][row]), row


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(1, 40), n_step=st.integers(1, 6), act=st.sampled_from([0, 2]),
    prioritised=st.sampled_from([0, 1]),
    ends=st.dictionaries(
        st.tuples(st.integers(0, 39), st.integers(0, ENVS - 1)),
        st.sampled_from(["terminated", "truncated", "both"]),
        max_size=25,
    ),
)  # fmt: skip
def test_n_step_returns_equal_the_definition_at_ends_truncations_and_the_newest_row(
    steps: int, n_step: int, act: int, prioritised: int, ends: dict[tuple[int, int], str]
) -> None:
    buffers, sample = stored(steps, ends, n_step, act=act, prioritised=prioritised)
    for _ in range(4):
        sample()
        for b, row in enumerate(buffers["batch.index"][0]):
            assert row < min(steps * ENVS, CAPACITY)
            total, discount, last = naive(buffers, int(row), n_step, 0.97)
            assert buffers["batch.reward"][0, b] == pytest.approx(total, rel=1e-6)
            assert buffers["batch.discount"][0, b] == pytest.approx(discount, rel=1e-6)
            for name, source in (("obs", row), ("action", row), ("next_obs", last)):
                stored_row = buffers[f"replay.{name}"][source]
                np.testing.assert_array_equal(buffers[f"batch.{name}"][0, b], stored_row)


def test_priorities_follow_the_formula_and_of_duplicates_the_last_counts() -> None:
    update = kernel("replay_update", batch=4, steps=2, capacity=CAPACITY, fanout=FANOUT)
    buffers = fill_arrays([update])
    buffers["batch.index"][:] = [[5, 7, 5, 9], [7, 1, 1, 1]]
    buffers["batch.td"][:] = [[1, 2, 3, 4], [5, 6, 7, 0]]
    cpu.bind(update, "native", buffers)()
    expected = np.zeros(CAPACITY)
    for row, td in ((5, 3), (7, 5), (9, 4), (1, 0)):
        expected[row] = (td + 1e-2) ** 0.6
    np.testing.assert_allclose(leaves(buffers)[:CAPACITY], expected, rtol=1e-6)
    assert buffers["replay.tree"][0] == pytest.approx(expected.sum(), rel=1e-6)
    assert buffers["replay.priority"][2] == pytest.approx(7.01**0.6)


# Fused and grouped calls


CRITIC = (3, 16, 16, 1)
NETWORKS: dict[str, dict[str, Any]] = {
    "dqn": {"q": (2, 16, 16, 2), "double": 1},
    "ddpg": {"actor": (2, 16, 1), "critic": CRITIC},
    "td3": {"actor": (2, 16, 1), "critic1": CRITIC, "critic2": CRITIC, "policy_delay": 2},
    "sac": {"actor": (2, 16, 2), "critic1": CRITIC, "critic2": CRITIC, "alpha": (0, 1)},
}


def learn_kernels(algorithm: str, prioritised: int, steps: int) -> dict[str, Kernel]:
    act, nets = 0 if algorithm == "dqn" else 1, NETWORKS[algorithm]
    draws: dict[str, Any] = {"batch": DRAWN, "steps": steps}
    sizes = {**ring(prioritised, act=act), "n_step": 3}
    return {
        "learn": kernel(f"learn.{algorithm}", **nets, **draws, **sizes),
        "sample": kernel("replay_sample", **draws, **sizes),
        "update": kernel(f"update.{algorithm}", **nets, **draws, obs=2, act=act),
        "priorities": kernel("replay_update", capacity=CAPACITY, fanout=FANOUT, **draws),
        "insert": kernel("replay_insert", **ring(prioritised, act=act)),
    }


def test_under_uniform_replay_a_block_draws_what_single_firings_draw() -> None:
    block, single = (learn_kernels("dqn", 0, steps)["sample"] for steps in (6, 1))
    buffers, _ = stored(steps=9, prioritised=0)
    rows: list[list[np.ndarray]] = []
    for k, firings in ((block, 1), (single, 6)):
        mine = {n: a.copy() for n, a in buffers.items() if not n.startswith("batch.")}
        mine.update({n: a for n, a in fill_arrays([k]).items() if n.startswith("batch.")})
        call = cpu.bind(k, "native", mine)
        drawn = []
        for _ in range(firings):
            call()
            drawn.extend(mine["batch.index"].copy())
        rows.append(drawn)
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize("algorithm", NETWORKS)
def test_a_firing_allocates_nothing(algorithm: str) -> None:
    """numba's counter of allocated blocks stays where it is; it counts those of a function that
    makes an array."""
    _nrt_python: Any = import_module("numba.core.runtime._nrt_python")
    rtsys: Any = import_module("numba.core.runtime").rtsys

    act = 0 if algorithm == "dqn" else 1
    kernels = learn_kernels(algorithm, 1, 3)
    acting = "ddpg" if algorithm == "td3" else algorithm
    network = next(iter(NETWORKS[algorithm].items()))
    sizes: dict[str, Any] = dict([network], envs=ENVS, obs=2, act=act)
    kernels["inference"] = kernel(f"inference.{acting}", sizes)
    buffers = fill_arrays(kernels.values())
    calls = {name: cpu.bind(k, "native", buffers) for name, k in kernels.items()}
    program, obs = ("Pendulum-v1", 3) if act else ("CartPole-v1", 4)
    stacks = {**ring(1, act=act), "stack": 2, "ends": 4, "apart": ENVS}
    stored = kernel("replay_insert", stacks)
    drawn = kernel("replay_sample", stacks, batch=DRAWN, steps=3, n_step=3)
    frames = fill_arrays([stored, drawn])
    calls["frames"] = cpu.bind(stored, "native", frames)
    calls["stacks"] = cpu.bind(drawn, "native", frames)
    env = kernel("env_step", program=program, envs=ENVS, obs=obs, act=act)
    calls["env"] = cpu.bind(env, "native", fill_arrays([env]))
    calls["makes an array"] = makes = numba.njit(lambda: np.zeros(3).sum())
    for call in calls.values():
        call()
    _nrt_python.memsys_enable_stats()
    try:
        for name, call in calls.items():
            before = rtsys.get_allocation_stats()
            call()
            after = rtsys.get_allocation_stats()
            assert after.alloc - before.alloc == (call is makes), name
    finally:
        _nrt_python.memsys_disable_stats()
