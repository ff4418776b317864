"""The closed forms of the FPGA: cycles against counts by hand, and what fits on chip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pearl.testing import EstimatorContract
from pearl_devices import Device, Kernel, backend, kernel
from pearl_devices import fpga as device_kind
from pearl_devices.buffers import allocate
from pearl_devices.fpga import resources
from pearl_devices.fpga.learner import ddpg, dqn
from pearl_devices.fpga.program import Shape, draw_cycles, set_cycles
from pearl_devices.primitives.fpga.passes import td_terms
from pearl_devices.primitives.math.nets import td_gradient
from pearl_estimators import Estimate, estimate
from pearl_estimators.fpga_released import learner_cycles, power_below
from pearl_estimators.host.benchmark_kernels import fill

FPGA = Device(
    "fpga", "fpga", width=4510, width_unit="pe", memory_bytes_per_s=77e9, overhead_s=2e-6,
    idle_power_w=20.0, active_power_w=60.0, simulated=True,
    figures={
        "clock_hz": 250e6, "ram_blocks": 7110, "ram_block_bits": 20480, "ram_word_bits": 40,
        "ddr_latency_s": 16e-9, "float32_cycles": 4,
    },
)  # fmt: skip
SIZES = {
    "envs": 8, "obs": 4, "act": 0, "capacity": 4096, "fanout": 16, "prioritised": 1, "batch": 64,
    "steps": 1, "n_step": 1, "q": (4, 64, 64, 2), "double": 1,
}  # fmt: skip
DDPG = {
    "obs": 3, "act": 1, "actor": (3, 64, 64, 1), "critic": (4, 64, 64, 1), "batch": 64, "steps": 2,
}  # fmt: skip


RELEASED = replace(FPGA, design="released")


def some(kind: str, **sizes: object) -> Kernel:
    return kernel(kind, {**SIZES, **sizes})  # type: ignore[dict-item]


def learning(q: tuple[int, ...]) -> Kernel:
    return kernel("update.dqn", obs=4, act=0, q=q, batch=64, steps=1, double=1)


class TestFpga(EstimatorContract):
    device = FPGA
    rung = "closed_form"
    kernels = (
        some("inference.dqn"), kernel("inference.ddpg", envs=8, obs=3, act=1, actor=(3, 64, 64, 1)),
        some("update.dqn"), kernel("update.ddpg", DDPG), some("replay_insert"),
        some("replay_insert", prioritised=0), some("replay_sample"),
        some("replay_sample", prioritised=0, n_step=3), some("replay_update"),
        kernel("param_sync", args={"network": "q"}, params=5000),
    )  # fmt: skip


class TestReleasedFpga(EstimatorContract):
    device = RELEASED
    rung = "closed_form"
    kernels = (
        some("update.dqn"), kernel("update.ddpg", DDPG), some("replay_insert"),
        some("replay_sample"), some("replay_update"),
        kernel("param_sync", args={"network": "q"}, params=5000),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("widths", "batch", "us"),
    [
        ((4, 64, 64, 2), 32, 25.7), ((4, 64, 64, 2), 128, 102.9), ((4, 64, 64, 2), 512, 411.6),
        ((8, 256, 256, 2), 256, 918.5),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(("leaves", "cycles"), [(16, 3), (64, 6), (4096, 9), (50_000, 12)])
def test_one_draw_or_set_takes_three_cycles_a_level(leaves, cycles):
    """Of the engine's own fan-out, whatever the spec's."""
    k = kernel("replay_update", batch=1, steps=1, capacity=leaves, fanout=3)
    depth = resources.tree_engine(k, FPGA).depth
    assert draw_cycles(depth, 1) == set_cycles(depth, 1) == cycles


def test_draws_follow_each_other_every_cycle_and_sets_every_three():
    assert draw_cycles(3, 64) == 9 + 63
    assert set_cycles(3, 64) == 9 + 3 * 63


def width_of(k: Kernel, variant: str) -> int:
    """The engine with the most lanes."""
    return max(w for v, w in device_kind.offers(k, FPGA) if v == variant)


def estimated(k: Kernel) -> Estimate:
    """On all of the device, as the first variant that is offered."""
    return estimate(k, FPGA, width=FPGA.width)


def test_an_inference_by_hand():
    """2→3→1 for 4 environments on 8 × 8: a row a cycle in, two products of one tile, a row out."""
    k = kernel("inference.dqn", envs=4, obs=2, act=0, q=(2, 3, 1))
    products = [2 + terms + 8 + 4 + 3 + 2 * 3 for terms in (2 + 1, 3 + 1)]
    cycles = 1 + (2 + 4) + sum(products) + (4 + 4) + 2
    e = estimate(k, FPGA, variant="array8", width=width_of(k, "array8"))
    assert e.latency_s == pytest.approx(2e-6 + cycles / 250e6)
    assert e.bound_by == "overhead"


def test_an_update_takes_the_cycles_of_its_program():
    k = some("update.dqn", steps=3)
    cycles = dqn((4, 64, 64, 2), 64, True, Shape(16, 16)).cycles
    e = estimate(k, FPGA, variant="array16", width=width_of(k, "array16"))
    assert e.occupancy_s == pytest.approx(3 * cycles / 250e6)
    assert e.latency_s == pytest.approx(2e-6 + 16e-9 + 3 * cycles / 250e6)
    assert e.source.startswith(
        "cycles of an engine in Verilog, equal to its simulation: array16 at 250 MHz, clock assumed"
    )


def test_a_batch_that_the_memory_gives_slowly_takes_longer_by_that():
    k = kernel("update.dqn", obs=400, act=0, q=(400, 8, 2), batch=64, steps=1, double=1)
    width = width_of(k, "array8")
    slow = replace(FPGA, memory_bytes_per_s=1e9)
    more = 64 * (4 * 803 + 8) / 1e9 - dqn((400, 8, 2), 64, True, Shape(8, 8)).beats / 250e6
    times = [estimate(k, d, variant="array8", width=width).latency_s for d in (slow, FPGA)]
    assert more > 0
    assert times[0] - times[1] == pytest.approx(more)


def test_a_draw_is_bound_by_memory_where_rows_are_long():
    short, long = some("replay_sample", obs=4), some("replay_sample", obs=4000)
    assert estimated(short).bound_by != "memory"
    e = estimated(long)
    assert e.bound_by == "memory"
    bursts = -(-(8 * 4000 + 4 + 8 + 2) // 64)
    assert e.occupancy_s == pytest.approx(64 * bursts * 64 / 77e9)


def test_only_what_fits_in_the_dsp_blocks_is_offered():
    """N² elements, 11 blocks a lane, N + 2 for the norm and 4 for the loss."""
    widths = [(8, 8 * 8 + 11 * p + 8 + 6) for p in (2, 8)]
    widths.append((16, 256 + 11 * 4 + 16 + 6))
    small = replace(FPGA, width=widths[-1][1])
    offered = device_kind.offers(some("update.dqn"), small)
    assert offered == tuple((f"array{n}", w) for n, w in widths)
    assert device_kind.offers(some("update.dqn"), replace(FPGA, width=99)) == ()
    assert "array8 needs 100 pe, has 99" in repr(
        device_kind.offers(some("update.dqn"), replace(FPGA, width=99))
    )
    variants = {variant for variant, _ in device_kind.offers(some("update.dqn"), FPGA)}
    assert variants == {"array8", "array16", "array32", "array64"}
    modes = device_kind.offers(some("update.dqn"), FPGA)
    assert [w for v, w in modes if v == "array64"] == [4096 + 11 * 16 + 64 + 6]


def test_what_no_engine_computes_is_refused_in_words():
    def why(k: Kernel, device: Device = FPGA) -> str:
        return repr(device_kind.offers(k, device))

    assert "learner and replay are two engines" in why(some("learn.dqn"))
    td3 = kernel("inference.td3", envs=8, obs=3, act=1, actor=(3, 64, 64, 1))
    assert "the engines compute DQN and DDPG; inference.td3 runs on CPUs and GPUs" in why(td3)
    soft = replace(FPGA, figures={n: v for n, v in FPGA.figures.items() if n != "float32_cycles"})
    assert "no hard float32 block" in why(some("update.dqn"), soft)
    assert device_kind.offers(some("replay_sample"), soft)
    many = some("update.dqn", q=(4, 8, 18))
    assert {v for v, _ in device_kind.offers(many, FPGA)} == {"array32", "array64"}
    deep = some("update.dqn", batch=5000)
    assert {v for v, _ in device_kind.offers(deep, FPGA)} > {"array8-sub512", "array64-sub2048"}
    assert "rows: an engine supports at most 4095" in why(some("inference.dqn", envs=5000))
    assert device_kind.offers(some("replay_sample", fanout=6), FPGA)


def test_blocks_of_a_tree_by_hand():
    (m20k,) = resources.on_chip(FPGA)
    # 262,144 leaves by 8: 32,768 rows of 8 sums of 20 bits, a level above 8 of 23, …
    sizes = resources.tree_memories(262_144, 8)
    assert sizes == [
        (1, 32_768, 160), (1, 4096, 184), (1, 512, 208), (1, 64, 232), (1, 8, 256), (1, 1, 280)
    ]  # fmt: skip
    assert [resources.memory_blocks(rows, bits, m20k) for _, rows, bits in sizes] == [
        4 * 64, 5 * 8, 6, 6, 7, 7
    ]  # fmt: skip


def test_a_gradient_of_a_sub_batch_has_the_terms_of_the_sums_before_it():
    """4 → 2 on 8 × 8, 32 rows in four sub-batches: the gradient's one tile is fed for 16 cycles
    at least, and each sub-batch but the first adds 8 rows of the gradient to its 8."""
    parts = [i for i in dqn((4, 2), 32, False, Shape(8, 2), 8).program if i.where == 4]
    assert [(i.k, i.variant, i.waits) for i in parts] == [
        (8, False, True), (16, True, True), (16, True, True), (16, True, False)
    ]  # fmt: skip


def test_sub_batches_are_offered_where_the_memory_is_short():
    """The largest that fits, and smaller ones as long as the learner takes more than an eighth."""
    k = some("update.dqn", batch=512)

    def offered(blocks: float) -> list[str]:
        board = replace(FPGA, width=150, figures={**FPGA.figures, "ram_blocks": blocks})
        return [variant for variant, _ in device_kind.offers(k, board)]

    (m20k,) = resources.on_chip(FPGA)

    def need(rows: int) -> int:
        sizes = resources.learner_memories(dqn((4, 64, 64, 2), 512, True, Shape(8, 2), rows))
        return sum(n * resources.memory_blocks(words, bits, m20k) for n, words, bits in sizes)

    assert offered(8 * need(512)) == ["array8"]
    assert offered(need(512))[:2] == ["array8", "array8-sub256"]
    assert offered(need(512) - 1)[0] == "array8-sub256"
    assert offered(need(64)) == ["array8-sub64"]
    assert offered(need(64) - 1) == []
    small = device_kind.offers(k, replace(FPGA, figures={**FPGA.figures, "ram_blocks": 9.0}))
    assert "array8-sub64 needs 40 memory blocks on chip" in repr(small)
    with pytest.raises(ValueError, match=r"sub-batches of 32 needs 265 instr.*has room for 256"):
        dqn((4, 64, 64, 2), 512, True, Shape(8, 2), 32)


def test_sub_batches_of_ddpg_stream_observations_and_actions_twice():
    """Each row of 3 + 1 values is one row of the stream; 64 rows come again."""
    nets = (3, 64, 64, 1), (4, 64, 64, 1)
    whole, sub = (ddpg(*nets, 64, Shape(8, 2), rows) for rows in (0, 16))
    assert (whole.rows_again, sub.rows_again) == (0, 64)
    assert sub.beats - whole.beats == 64
    k = kernel("update.ddpg", DDPG)
    slow = replace(FPGA, memory_bytes_per_s=1e8, figures={**FPGA.figures, "ram_blocks": 210.0})
    variants = dict(device_kind.offers(k, slow))
    sub_batch = next(v for v in variants if v.startswith("array8-sub"))
    times = [
        estimate(k, d, variant=v, width=variants[sub_batch]).latency_s
        for d, v in ((slow, sub_batch), (replace(slow, memory_bytes_per_s=1e8 / 2), sub_batch))
    ]
    moved = 2 * 64 * (4 * (2 * 3 + 3) + 4 + 4 * (3 + 1))  # two steps of 64 samples
    assert times[1] - times[0] == pytest.approx(moved / 1e8)


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        (
            {"clock_hz": 250e6},
            "no figure 'ram_blocks'; it gives .'clock_hz'.*20480 for an Intel M20K",
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
    engine = dqn((4, 64, 64, 2), 64, True, Shape(8, 2))
    ram = {"clock_hz": 300e6, "ram_block_bits": 36864, "ram_word_bits": 72, "float32_cycles": 4}
    memory = resources.OnChip(1, 36864, 72)
    sizes = resources.learner_memories(engine)
    uses = sum(n * resources.memory_blocks(words, bits, memory) for n, words, bits in sizes)
    # Blocks are of 512 words: 8 banks of A with 2,240 words and of B with 1,800; 32 memories beside
    # B with 712; 24 of outputs with 128; ReLU's mask, the samples' records and the program.
    assert (engine.blocks_a * 8, engine.blocks_b * 8, engine.blocks_w * 8) == (2240, 1800, 712)
    assert uses == 8 * 5 + 8 * 4 + 32 * 2 + 24 + 5 + 2 + 4
    for blocks, offered in ((uses, True), (uses - 1, False)):
        sized = replace(FPGA, figures={**ram, "ram_blocks": blocks})
        ways = device_kind.offers(learning((4, 64, 64, 2)), sized)
        assert ("array8" in dict(ways)) == offered
    board = replace(FPGA, figures={**ram, "ram_blocks": 9999})
    assert (
        "array8 at 300 MHz"
        in estimate(some("inference.dqn"), board, variant="array8", width=100).source
    )


def test_ultraram_takes_what_finds_no_room_in_block_ram():
    ram = {"clock_hz": 300e6, "ram_blocks": 23, "ram_block_bits": 36864, "ram_word_bits": 72}
    ultra = {"ultraram_blocks": 8, "ultraram_block_bits": 294_912, "ultraram_word_bits": 72}
    # 262,144 leaves by 8: 32,768 rows of 160 bits are 24 UltraRAMs or 192 block RAMs, 4,096 rows
    # of 184 bits 3 or 24, the four levels above 3 or 4 each
    tree = resources.tree_memories(262_144, 8)
    sized = {"ultraram_blocks": 24 + 3, "ram_blocks": 3 + 4 + 4 + 4}

    def misfit(**figures: float) -> str:
        board = replace(FPGA, figures={**ram, **ultra, **sized, **figures})
        return resources.misfit(tree, resources.on_chip(board), "the sum tree")

    assert misfit() == ""
    for name in sized:
        assert "the sum tree needs" in misfit(**{name: sized[name] - 1}), name


@pytest.mark.parametrize(
    ("k", "variant", "device"),
    [
        (some("update.dqn"), "layered", RELEASED),
        (some("replay_update"), "tree", RELEASED),
        (some("replay_sample", prioritised=0), "ring", FPGA),
        (kernel("param_sync", args={"network": "q"}, params=50), "copy", FPGA),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_has_no_engine_of_its_own_computes_what_the_host_computes(k, variant, device):
    assert variant in dict(device_kind.offers(k, device))
    results = []
    for kind, name in (("fpga", variant), ("cpu", "native")):
        buffers = allocate([k])
        fill(buffers, k)
        backend(kind).bind(k, name, buffers)()
        results.append(buffers)
    assert all(np.array_equal(results[0][n], results[1][n]) for n in results[0])


@pytest.mark.parametrize("error", np.float32([-3.0, -0.2, 0.2, 3.0]))
def test_the_loss_of_a_sample_is_that_of_the_cpu(error):
    weight, huber = np.float32(0.5), np.float32(0.7)
    loss, slope = td_gradient(error, weight, 4, huber)
    found = td_terms(error, np.float32(0.0), weight, np.float32(0.25), huber)
    assert found == pytest.approx((abs(error), slope, loss))
