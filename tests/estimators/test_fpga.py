"""The closed forms of the FPGA: cycles against counts by hand, and what fits on chip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pearl.testing import EstimatorContract
from pearl_devices import Device, Kernel, UnsupportedError, backend, kernel
from pearl_devices import fpga as device_kind
from pearl_devices.buffers import allocate
from pearl_estimators import estimate
from pearl_estimators.fpga import (
    gemm_cycles,
    network_cycles,
    optimiser_cycles,
    tree_cycles,
)
from pearl_estimators.fpga_released import learner_cycles, power_below
from pearl_estimators.host.benchmark_kernels import fill

FPGA = Device(
    "fpga",
    "fpga",
    width=4510,
    width_unit="pe",
    memory_bytes_per_s=77e9,
    overhead_s=2e-6,
    idle_power_w=20.0,
    active_power_w=60.0,
    simulated=True,
    figures={
        "clock_hz": 250e6,
        "ram_blocks": 7110,
        "ram_block_bits": 20480,
        "ram_word_bits": 40,
        "ddr_latency_s": 16e-9,
    },
)
SIZES = {
    "envs": 8,
    "obs": 4,
    "act": 0,
    "capacity": 4096,
    "fanout": 16,
    "prioritised": 1,
    "batch": 64,
    "steps": 1,
    "n_step": 1,
    "q": (4, 64, 64, 2),
    "double": 1,
}
DDPG = {
    "obs": 3,
    "act": 1,
    "actor": (3, 64, 64, 1),
    "critic": (4, 64, 64, 1),
    "batch": 64,
    "steps": 2,
}


RELEASED = replace(FPGA, design="released")


def some(kind: str, **sizes: object) -> Kernel:
    return kernel(kind, {**SIZES, **sizes})  # type: ignore[dict-item]


def learning(q: tuple[int, ...]) -> Kernel:
    return kernel("update.dqn", obs=4, act=0, q=q, batch=64, steps=1, double=1)


class TestFpga(EstimatorContract):
    device = FPGA
    rung = "closed_form"
    kernels = (
        some("inference.dqn"),
        kernel("inference.ddpg", envs=8, obs=3, act=1, actor=(3, 64, 64, 1)),
        some("update.dqn"),
        kernel("update.ddpg", DDPG),
        some("replay_insert"),
        some("replay_insert", prioritised=0),
        some("replay_sample"),
        some("replay_sample", prioritised=0, n_step=3),
        some("replay_update"),
        some("learn.dqn", steps=4),
        some("learn.dqn", prioritised=0),
        kernel("param_sync", args={"network": "q"}, params=5000),
    )


class TestReleasedFpga(EstimatorContract):
    device = RELEASED
    rung = "closed_form"
    kernels = (
        some("update.dqn"),
        kernel("update.ddpg", DDPG),
        some("replay_insert"),
        some("replay_sample"),
        some("replay_update"),
        kernel("param_sync", args={"network": "q"}, params=5000),
    )


@pytest.mark.parametrize(
    ("widths", "batch", "us"),
    [
        ((4, 64, 64, 2), 32, 25.7),
        ((4, 64, 64, 2), 128, 102.9),
        ((4, 64, 64, 2), 512, 411.6),
        ((8, 256, 256, 2), 256, 918.5),
    ],
)
def test_the_released_learner_takes_what_its_authors_model_says(widths, batch, us):
    """Of the DSP blocks that a tree of four levels leaves."""
    assert learner_cycles(widths, batch, 4510 - 8) / 250e6 * 1e6 == pytest.approx(us, abs=0.06)


@pytest.mark.parametrize(
    ("fanout", "batch", "us"), [(16, 32, 4.6), (16, 128, 16.9), (16, 512, 66.2), (8, 128, 8.5)]
)
def test_the_released_replay_takes_what_its_authors_model_says(fanout, batch, us):
    """Of four levels; 2 µs of it are the doorbell."""
    sizes = {"fanout": fanout, "capacity": fanout**4, "batch": batch}
    e = estimate(some("replay_sample", **sizes), RELEASED, width=8)
    assert (e.latency_s - RELEASED.overhead_s) * 1e6 == pytest.approx(us, abs=0.06)
    assert "released design (HeteroRL)" in e.source
    written = estimate(some("replay_update", **sizes), RELEASED, width=8)
    us = 2 * 4 / 250 + batch * 24 / 77e3  # two cycles a level, and six words a request
    assert (written.latency_s - RELEASED.overhead_s) * 1e6 == pytest.approx(us)


def test_layers_of_the_released_learner_by_hand():
    """One layer 4 → 8, 16 samples, 3·512 multiply-adds of work and none backward: of 100 units each
    of two passes gets 50, which is 32 by powers of two, and the forward pass has 8 outputs."""
    assert learner_cycles((4, 8), 16, 100) == 512 / 8 + 16
    assert [power_below(n) for n in (0, 1, 2, 3, 4, 5, 64, 65)] == [1, 1, 1, 2, 2, 4, 32, 64]


def test_the_released_design_runs_what_it_was_released_for():
    def variants(k: Kernel) -> list[str]:
        return [variant for variant, _ in device_kind.offers(k, RELEASED)]

    assert variants(some("update.dqn")) == ["layered"]
    assert variants(some("replay_sample")) == ["tree"]
    assert variants(some("replay_sample", prioritised=0)) == []
    assert variants(some("inference.dqn")) == []
    assert variants(some("learn.dqn")) == []
    assert device_kind.offers(some("update.dqn"), replace(RELEASED, width=40)) == ()


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("k", [8, 32])
def test_the_last_accumulator_of_a_full_tile_is_right_after_its_skew(n, k):
    assert gemm_cycles(n, k, n, n) == k + 2 * (n - 1) + 1


def test_tiles_by_hand():
    # 5×3 · 3×6 on a 4×4 grid: tiles of 4×4, 4×2, 1×4 and 1×2, each 3 + (r-1) + (c-1) + 1
    assert gemm_cycles(5, 3, 6, 4) == (3 + 7) + (3 + 5) + (3 + 4) + (3 + 2)
    # one accumulator: every product after the other
    assert gemm_cycles(2, 5, 3, 1) == 6 * (5 + 1)


def test_a_result_stationary_grid_counted_cycle_by_cycle():
    """A grid stepped in time: operands enter skewed, one multiply-add a cell and cycle."""
    rng = np.random.default_rng(3)
    for m, k, n in ((3, 5, 4), (4, 2, 1), (1, 7, 1), (4, 4, 4)):
        a, b = rng.integers(-9, 9, (m, k)), rng.integers(-9, 9, (k, n))
        sums, cycle = np.zeros((m, n), int), 0
        while not (sums == a @ b).all() or cycle < k + m + n - 2:
            for i in range(m):
                for j in range(n):
                    step = cycle - i - j
                    if 0 <= step < k:
                        sums[i, j] += a[i, step] * b[step, j]
            cycle += 1
        # one cycle more than the last multiply-add, for the register behind the multiplier
        assert gemm_cycles(m, k, n, 4) == cycle + 1


@pytest.mark.parametrize(
    ("leaves", "fanout", "cycles"), [(64, 8, 7), (4096, 8, 13), (4096, 16, 10)]
)
def test_one_draw_takes_three_cycles_a_level_and_one(leaves, fanout, cycles):
    k = kernel("replay_update", batch=1, steps=1, capacity=leaves, fanout=fanout)
    from pearl_devices.kernels.replay import tree_depth

    assert tree_cycles(tree_depth(k), 1) == cycles


def test_draws_follow_each_other_every_three_cycles():
    assert tree_cycles(3, 64) == 10 + 63 * 3


def test_an_inference_by_hand():
    # 2→3→1 for 4 environments on an 8×8 grid: (4,2,3) and (4,3,1), one tile each
    k = kernel("inference.dqn", envs=4, obs=2, act=0, q=(2, 3, 1))
    assert network_cycles(k, 8) == (2 + 3 + 2 + 1) + (3 + 3 + 0 + 1)
    e = estimate(k, FPGA, width=64)
    assert e.latency_s == pytest.approx(2e-6 + 15 / 250e6)
    assert e.occupancy_s == pytest.approx(15 / 250e6)
    assert e.bound_by == "overhead"


def test_an_update_by_hand():
    layers, batch, grid = (2, 3, 1), 4, 8
    k = kernel("update.dqn", obs=2, act=0, q=layers, batch=batch, steps=2, double=0)
    forward = gemm_cycles(4, 2, 3, grid) + gemm_cycles(4, 3, 1, grid)
    weights = gemm_cycles(2, 4, 3, grid) + gemm_cycles(3, 4, 1, grid)
    through = gemm_cycles(4, 1, 3, grid)
    assert network_cycles(k, grid) == 2 * forward + weights + through
    assert optimiser_cycles(k, grid) == -(-13 * 8 // 64)  # 13 parameters, 8 multiply-adds each
    cycles = 2 * (2 * forward + weights + through + 2)
    e = estimate(k, FPGA, width=64)
    assert e.occupancy_s == pytest.approx(cycles / 250e6)
    assert e.latency_s == pytest.approx(2e-6 + 16e-9 + cycles / 250e6)


def test_a_draw_is_bound_by_memory_where_rows_are_long():
    short, long = some("replay_sample", obs=4), some("replay_sample", obs=4000)
    assert estimate(short, FPGA, width=6).bound_by != "memory"
    e = estimate(long, FPGA, width=6)
    assert e.bound_by == "memory"
    bursts = -(-(8 * 4000 + 4 + 8 + 2) // 64)
    assert e.occupancy_s == pytest.approx(64 * bursts * 64 / 77e9)


def test_a_large_update_is_bound_by_compute():
    big = kernel("update.dqn", obs=8, act=0, q=(8, 256, 256, 4), batch=256, steps=1, double=0)
    assert estimate(big, FPGA, width=64).bound_by == "compute"


def test_a_pipeline_takes_its_next_firing_before_the_result():
    e = estimate(some("replay_sample"), FPGA, width=6)
    assert e.occupancy_s < e.latency_s - 2e-6


def test_an_engine_rings_one_doorbell_and_takes_its_steps_one_after_another():
    one, four = (estimate(some("learn.dqn", steps=n), FPGA, width=70) for n in (1, 4))
    assert four.occupancy_s == pytest.approx(4 * one.occupancy_s)
    assert four.latency_s - four.occupancy_s == pytest.approx(one.latency_s - one.occupancy_s)
    assert four.latency_s - four.occupancy_s == pytest.approx(2e-6)


def test_an_engine_is_slower_than_none_of_its_parts():
    whole = estimate(some("learn.dqn"), FPGA, width=70)
    for part, width in (("update.dqn", 64), ("replay_sample", 6), ("replay_update", 6)):
        assert estimate(some(part), FPGA, width=width).occupancy_s < whole.occupancy_s


def test_only_what_fits_in_the_dsp_blocks_is_offered():
    small = replace(FPGA, width=300)
    assert device_kind.offers(some("update.dqn"), small) == (("systolic", 64), ("systolic", 256))
    assert device_kind.offers(some("learn.dqn"), small) == (("engine", 70), ("engine", 262))
    assert len(device_kind.offers(some("update.dqn"), FPGA)) == 4


def test_blocks_of_a_tree_by_hand():
    (m20k,) = device_kind.on_chip(FPGA)
    # 262,144 leaves by 8: a row of 256 bits is 7 blocks of 40 bits wide, 512 rows are one deep
    assert device_kind.tree_rows(262_144, 8) == [32_768, 4096, 512, 64, 8, 1]
    blocks = [device_kind.level_blocks(rows, 8, m20k) for rows in (32_768, 4096, 512, 1)]
    assert blocks == [7 * 64, 7 * 8, 7, 7]


def test_a_tree_that_does_not_fit_on_chip_is_not_offered():
    assert device_kind.offers(some("replay_update", capacity=2_000_000), FPGA)
    assert device_kind.offers(some("replay_update", capacity=50_000_000), FPGA) == ()
    uniform = some("replay_sample", capacity=50_000_000, prioritised=0)
    assert device_kind.offers(uniform, FPGA)


def test_networks_that_do_not_fit_on_chip_are_not_offered():
    wide = (4, 1024, 1024, 2)  # 34 Mbit of parameters, five times that to learn; there are 146
    assert device_kind.offers(some("update.dqn", q=wide), FPGA) == ()
    for kind in ("update.dqn", "inference.dqn", "learn.dqn"):
        assert device_kind.offers(some(kind, q=(4, 64, 64, 3), duelling=1), FPGA) == ()
    assert device_kind.offers(some("inference.dqn", q=wide), FPGA)
    assert device_kind.offers(some("inference.dqn", obs=4, act=0, q=(4, 4096, 4096, 2)), FPGA) == ()


def test_environments_do_not_run_on_it():
    k = kernel("env_step", program="CartPole-v1", envs=8, obs=4, act=0)
    assert device_kind.offers(k, FPGA) == ()
    with pytest.raises(ValueError, match=r"env_step .*cannot run it"):
        estimate(k, FPGA)


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        (
            {"clock_hz": 250e6},
            "no figure 'ram_blocks'; it gives .'clock_hz'.*20480 of an Intel M20K",
        ),
        ({"clock_hz": 250e6, "ram_blocks": 7110}, "no figure 'ram_block_bits'"),
        ({"clock_hz": 250e6, "ram_blocks": 7110, "ram_block_bits": 0}, "gives ram_block_bits as 0"),
        ({**FPGA.figures, "ultraram_blocks": 4}, "no figure 'ultraram_block_bits'"),
        ({"clock_hz": 3e8, "ram_blocks": 2, "ram_block_bits": 8}, "no figure 'ram_word_bits'"),
        ({n: v for n, v in FPGA.figures.items() if n != "clock_hz"}, "no figure 'clock_hz'"),
    ],
)
def test_a_missing_figure_is_named(figures, named):
    bare = replace(FPGA, figures=figures)
    with pytest.raises(ValueError, match=named):
        device_kind.check(bare)
    with pytest.raises(ValueError, match=named):
        estimate(some("update.dqn"), bare)


def test_a_board_with_other_memory_is_offered_what_fits_in_it():
    ram = {"clock_hz": 300e6, "ram_blocks": 100, "ram_block_bits": 36864, "ram_word_bits": 72}
    board = replace(FPGA, figures=ram)
    # 32,772 leaves by 8: 4,097 rows of 256 bits are 9 blocks deep and 4 of 72 bits wide
    (memory,) = device_kind.on_chip(board)
    assert device_kind.level_blocks(device_kind.tree_rows(32_772, 8)[0], 8, memory) == 4 * 9
    update = learning((4, 64, 64, 2))
    uses = -(-device_kind.network_bits(update) // 36864)
    for blocks, offered in ((uses, True), (uses - 1, False)):
        sized = replace(FPGA, figures={**ram, "ram_blocks": blocks})
        assert bool(device_kind.offers(update, sized)) == offered
    e = estimate(some("inference.dqn"), board, width=64)
    assert e.source.startswith("closed form of a design not built: systolic at 300 MHz")
    assert "RTL" not in e.source


def test_ultraram_takes_what_finds_no_room_in_block_ram():
    ram = {"clock_hz": 300e6, "ram_blocks": 23, "ram_block_bits": 36864, "ram_word_bits": 72}
    ultra = {"ultraram_blocks": 8, "ultraram_block_bits": 294_912, "ultraram_word_bits": 72}
    # 262,144 leaves by 8, rows of 4 words: 32,768 rows are 8 UltraRAMs deep or 64 block RAMs,
    # 4,096 rows 1 or 8, the four levels above 1 each
    sizes = {name: size for name, size in SIZES.items() if name != "q"}
    tree = kernel("replay_update", {**sizes, "capacity": 262_144, "fanout": 8})  # type: ignore[arg-type]
    sized = {"ultraram_blocks": 4 * 8 + 4, "ram_blocks": 4 * 4}
    assert device_kind.offers(tree, replace(FPGA, figures={**ram, **ultra, **sized}))
    for name in sized:
        short = {**ram, **ultra, **sized, name: sized[name] - 1}
        assert device_kind.offers(tree, replace(FPGA, figures=short)) == (), name
    wide = learning((4, 256, 256, 2))
    bits = device_kind.network_bits(wide)
    room = {"ram_blocks": 1, "ultraram_blocks": -(-(bits - 36864) // 294_912)}
    assert device_kind.offers(wide, replace(FPGA, figures={**ram, **ultra, **room}))
    assert device_kind.offers(wide, replace(FPGA, figures={**ram, "ram_blocks": 1})) == ()


def test_the_band_holds_a_design_that_loses_a_quarter_of_its_cycles():
    e = estimate(some("update.dqn"), FPGA, width=64)
    assert (e.low_s, e.high_s) == pytest.approx((0.8 * e.latency_s, 1.5 * e.latency_s))


def test_too_few_units_for_a_tree_is_an_error():
    with pytest.raises(ValueError, match=r"tree needs at least 6 pe, given 1"):
        estimate(some("replay_sample"), FPGA)


@pytest.mark.parametrize(
    ("k", "variant"),
    [
        (some("update.dqn"), "systolic"),
        (some("replay_update"), "tree"),
        (kernel("param_sync", args={"network": "q"}, params=50), "copy"),
    ],
    ids=lambda x: x if isinstance(x, str) else x.kind,
)
def test_a_bound_kernel_computes_what_the_native_cpu_kernel_computes(k, variant):
    results = []
    for kind, name in (("fpga", variant), ("cpu", "native")):
        buffers = allocate([k])
        fill(buffers, k)
        backend(kind).bind(k, name, buffers)()
        results.append(buffers)
    assert all(np.array_equal(results[0][n], results[1][n]) for n in results[0])


def test_binding_an_unknown_design_is_refused():
    with pytest.raises(UnsupportedError, match=r"variant 'torch'.*systolic, layered, tree"):
        device_kind.bind(some("update.dqn"), "torch", {})
