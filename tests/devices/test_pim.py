"""Simulated processing in memory: what it refuses, its modelled seconds by hand, and its plans."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import pearl
from pearl_devices import Device, FigureError, Kernel, Refused, kernel, offers, pim
from pearl_estimators import estimate

BOX: dict[str, Any] = {
    "name": "box", "host": "cpu", "devices": {"cpu": "xeon_gold_6326", "pim": "upmem_2556"},
    "links": [{"between": ["cpu", "pim"], "latency": "20 us", "bandwidth": "6 GB/s"}],
}  # fmt: skip


def system(rows: int = 1_000_000, chunks: int = 2000, tau: int = 1, **options: Any) -> pearl.System:
    """Learning from a log of FrozenLake's size on `BOX`; nothing is collected."""
    return pearl.load(
        {
            "algorithm": {
                "name": "q_learning",
                "env": "FrozenLake-v1",
                "spaces": {"states": 16, "actions": 4},
                "offline": {"collect": rows, "chunks": chunks, **options},
            },
            "platform": BOX,
            "limits": {"averaging": tau},
        }
    )


def kernels(**sizes: int) -> tuple[Kernel, Kernel]:
    given = {"states": 16, "actions": 4, "obs": 1, "act": 0, "bits": 0, "order": 0, **sizes}
    return kernel("offline.q_learning", given), kernel("offline.average", given)


def with_tasklets(device: Device, tasklets: int) -> Device:
    return replace(device, figures={**device.figures, "tasklets": tasklets})


@pytest.mark.parametrize(("sizes", "why"), [
    ({"batch": 640, "chunks": 64}, ""),
    ({"batch": 1000, "chunks": 65}, "65 chunks need a DPU each, has 64"),
    ({"batch": 64, "chunks": 64, "states": 2048}, ""),  # 32 KiB and 16 blocks of 2 KiB
    ({"batch": 64, "chunks": 64, "states": 2049}, "need 64.02 KiB of WRAM, has 64 KiB"),
    ({"batch": 2**26 // 24, "chunks": 1}, ""),  # rows of 24 bytes that fill a bank of 64 MiB
    ({"batch": 2**26 // 24 + 1, "chunks": 1}, "a chunk needs 64 MiB of MRAM, has 64 MiB"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_need_and_the_limit(
    sizes: dict[str, int], why: str
) -> None:
    found = offers(kernels(**sizes)[0], pim.EXAMPLE)
    if not why:
        assert found == (("tables", sizes["chunks"]),)
        return
    assert isinstance(found, Refused)
    assert why in found.why


def test_a_kernel_that_learns_from_no_log_is_refused() -> None:
    found = offers(kernel("param_sync", params=3, args={"network": "q"}), pim.EXAMPLE)
    assert isinstance(found, Refused)
    assert "from a log alone" in found.why


@pytest.mark.parametrize("name", pim.FIGURES)
def test_a_figure_that_is_missing_is_named(name: str) -> None:
    figures = {n: v for n, v in pim.EXAMPLE.figures.items() if n != name}
    with pytest.raises(FigureError, match=f"gives no {name}; it needs each of clock_hz, "):
        pim.check(replace(pim.EXAMPLE, figures=figures))


def test_seconds_of_a_sweep_are_its_instructions_at_the_rate_of_its_tasklets() -> None:
    sweep, _ = kernels(batch=6400, chunks=64)
    each = 40 + 3 * 71 + 2 * 183 + 3 * 71  # control, comparisons, products, sums
    for tasklets, share in ((2, 2 / 11), (5, 5 / 11), (11, 1.0), (16, 1.0), (24, 1.0)):
        found = estimate(sweep, with_tasklets(pim.EXAMPLE, tasklets), width=64)
        assert found.latency_s == pytest.approx(100 * each / share / 350e6)
        assert "modelled" in found.source
        assert found.bound_by == "compute"
        assert (found.low_s, found.high_s) == (0.5 * found.latency_s, 2 * found.latency_s)
    alone = estimate(sweep, with_tasklets(pim.EXAMPLE, 1), width=64)
    dma = 2 * (77 + 2048 / 2)  # 2400 bytes of a chunk in two blocks
    assert alone.latency_s == pytest.approx((1100 * each + dma) / 350e6)


def test_rows_out_of_order_cost_a_transfer_each_and_fewer_where_blocks_are_long() -> None:
    transfers = {}
    for order in (0, 1, 2):
        sweep, _ = kernels(batch=64_000, chunks=64, order=order)
        transfers[order] = pim.sweep_cycles(sweep, pim.EXAMPLE)[1]
    assert transfers[0] == 12 * (77 + 1024)
    assert transfers[1] == transfers[2] == 1000 * (77 + 12)


def test_instructions_by_hand_of_whole_numbers_and_a_sweep_that_waits_for_its_rows() -> None:
    sweep, average = kernels(batch=6400, chunks=64, bits=8)
    # control, 3 comparisons, 2 products, 7 sums
    assert pim.instructions(sweep) == 40 + 3 * 3 + 2 * 137 + 7 * 6
    slow = replace(pim.EXAMPLE, figures={**pim.EXAMPLE.figures, "dma_cycles": 1e5})
    assert pim.closed_form(sweep, slow, "tables", 64)["bound_by"] == "memory"
    dma = 2 * (1e5 + 1024)
    assert estimate(sweep, slow, width=64).latency_s == pytest.approx(dma / 350e6)
    assert pim.closed_form(average, pim.EXAMPLE, "tables", 64)["bound_by"] == "memory"


def test_seconds_of_an_average_are_a_transfer_to_the_host_and_back() -> None:
    for chunks in (4, 64):
        _, average = kernels(batch=6400, chunks=chunks)
        size = chunks * 256
        there = size / min(chunks * 0.33e9, 4.74e9) + size / min(chunks * 0.33e9, 6.68e9)
        found = estimate(average, pim.EXAMPLE, width=chunks).latency_s
        assert found == pytest.approx(there + size / 10e9 + 2 * 2e-5 + 5e-5)


def period_s(chunks: int, tau: int, **options: Any) -> float:
    spec: Any = dict(system(chunks=chunks, tau=tau, **options).raw)
    spec["limits"] = {**spec["limits"], "pin": {"learn": "pim"}}
    return pearl.plan(pearl.load(spec)).period_s


@pytest.mark.parametrize("numbers", ["fp32", "int32"])
def test_strong_scaling_is_near_linear_at_fifty_sweeps_and_falls_towards_one(numbers: str) -> None:
    times = {
        tau: period_s(125, tau, format=numbers) / period_s(2000, tau, format=numbers)
        for tau in (50, 10, 1)
    }
    assert 14 <= times[50] <= 16
    assert times[50] > times[10] > times[1]


def test_plans_choose_between_cpu_and_pim_as_enumeration_does() -> None:
    chosen = set()
    for rows, tau, numbers in product((2000, 8000, 200_000), (1, 20), ("fp32", "int32")):
        free = system(rows=rows, chunks=1000, tau=tau, format=numbers)
        plan = pearl.plan(free)
        costs = {}
        for device in free.platform.devices:
            sweep, average = (estimate(t, device).latency_s for t in of(free))
            costs[device.name] = tau * sweep + average
        best = min(costs, key=lambda name: costs[name])
        assert {task.device for task in plan.tasks} == {best}
        assert plan.period_s == pytest.approx(costs[best])
        assert plan.simulated == ("pim",)
        chosen.add(best)
    assert chosen == {"cpu", "pim"}


def test_the_spec_of_the_page_is_planned_for_pim(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/pim.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "page.yaml").write_text(text)
    plan = pearl.plan(tmp_path / "page.yaml")
    assert {task.device for task in plan.tasks} == {"pim"}


def of(free: pearl.System) -> tuple[Kernel, ...]:
    from pearl.algorithms.families.offline import build

    return tuple(task.kernel for task in build("q_learning", free).tasks)


def test_a_run_planned_for_pim_is_emulated_and_computes_the_bits_of_the_cpu() -> None:
    tables = []
    for device in ("pim", "cpu"):
        spec: Any = dict(system(rows=600, chunks=3, tau=2).raw)
        spec["limits"] = {**spec["limits"], "pin": {"learn": device}}
        spec["train"] = {"steps": 1, "evaluate_every": 0, "final_episodes": 0}
        trainer = pearl.compile(pearl.load(spec), emulate=True, seed=1)
        run = trainer.train()
        assert {task.device for task in trainer.plan.tasks} == {device}
        assert run.simulated
        tables.append(trainer.session.arrays["learner.tables"].tobytes())
    assert tables[0] == tables[1]
