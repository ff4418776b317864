"""How many threads a GPU needs: closed form against sweep, halvings, and what is refused."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pearl
from pearl.cli import app
from pearl.errors import SpecError
from pearl.planner import gpu_balance
from pearl.planner.gpu_balance import Machine, balance, halvings
from pearl.report.balance_text import verdict_sentence
from pearl.spec.catalogue import catalogue
from pearl.spec.platform_entries import YOURS
from pearl.spec.platform_files import read_platform, unfold
from tests.schemas.test_schemas import problems

LINK = {"between": ["cpu", "gpu"], "source": "test", "latency": "10 us", "bandwidth": "16 GB/s"}
SLOW = {
    "algorithm": {
        "name": "dqn",
        "env": "Slow-v0",  # nobody timed it: 60 us an environment
        "spaces": {"obs": 4, "actions": 2},
        "num_envs": 256,
        "replay_ratio": "1/64",
        "batch_size": 64,
    },
    "platform": {"devices": {"cpu": "xeon_gold_6326", "gpu": "a100_sxm_40gb"}, "links": [LINK]},
}


def system(**changes: Any) -> pearl.System:
    return pearl.load(SLOW, set=changes)


FEW = {
    "kind": "cpu", "source": "test", "width": 4, "max_lanes": 4, "peak": "1 TFLOP/s",
    "memory_bandwidth": "50 GB/s", "overhead": "1 us", "idle_power": "20 W", "active_power": "80 W",
}  # fmt: skip


UNPOWERED = {**FEW, "idle_power": "0 W", "active_power": "0 W"}


@pytest.mark.parametrize("ratio", ["1/64", "1/16", "1/8", "1/4"])
@pytest.mark.parametrize("gpu", ["a100_sxm_40gb", "t4"])
def test_the_closed_form_is_within_a_grid_step_of_the_sweep(ratio: str, gpu: str) -> None:
    changes = {"algorithm.replay_ratio": ratio, "platform.devices.gpu": gpu}
    found = balance(system(**changes))
    threads = [p.cores for p in found.cores]
    for point in found.points:
        assert point.closed is not None
        if point.swept is None:
            assert point.closed > threads[-1]
            continue
        place = threads.index(point.swept)
        below = threads[place - 1] if place else 0
        assert below <= point.closed <= point.swept * 1.05


def test_actors_beyond_the_cores_take_turns() -> None:
    machine = Machine(system())
    eight, sixteen = machine.at(8, 8, 108), machine.at(16, 8, 108)
    assert sixteen.actors_s == pytest.approx(2 * machine.acting_s(16))
    assert eight.actors_s == pytest.approx(machine.acting_s(32))


def test_an_iterations_energy_is_idle_power_and_the_work_of_cores_and_sms() -> None:
    machine = Machine(system())
    cpu, gpu = machine.cpu, machine.gpu
    assert gpu is not None
    found = machine.at(8, 8, 54)
    period_s = max(found.actors_s, found.gpu_s, found.host_s)
    busy_s = 8 * machine.acting_s(32) + found.host_s
    joules = (cpu.idle_power_w + gpu.waiting_power_w) * period_s
    joules += (cpu.active_power_w - cpu.idle_power_w) * busy_s / cpu.width
    joules += machine.gpu_j(54)
    assert machine.gpu_j(54) == pytest.approx(machine.gpu_j(gpu.width))  # the work is the same
    assert 0 < machine.gpu_j(54) < (gpu.active_power_w - gpu.waiting_power_w) * found.gpu_s
    assert found.env_steps_per_s == pytest.approx(machine.graph.env_steps / period_s)
    assert found.env_steps_per_j == pytest.approx(machine.graph.env_steps / joules)


def test_at_the_closed_forms_threads_an_actor_takes_as_long_as_the_gpu() -> None:
    machine = Machine(system(**{"algorithm.replay_ratio": "1/4"}))
    point = machine.balance_point(108, halvings(16))
    assert point.closed is not None
    n = machine.environments
    each = (machine.acting_s(n) - machine.acting_s(1)) / (n - 1)
    shared_s = machine.acting_s(1) + (n / point.closed - 1) * each
    assert shared_s == pytest.approx(machine.gpu_s(108))


def test_without_power_figures_no_env_steps_a_joule_are_claimed() -> None:
    machine = Machine(pearl.load({**SLOW, "platform": {"devices": {"cpu": UNPOWERED}}}))
    assert machine.at(1, 1, None).env_steps_per_j == 0.0


EXAMPLE = Path(__file__).parents[2] / "examples" / "slow_environments.yaml"


def test_the_ratio_of_threads_to_sms_matters_where_environments_are_slow() -> None:
    slow = balance(pearl.load(EXAMPLE))
    assert slow.verdict.busiest == "actors"
    assert (slow.verdict.threads or 0) > slow.verdict.actors == slow.verdict.cores == 16
    assert slow.halved_cores == pytest.approx(0.5, abs=0.02)
    assert (slow.halved_sms or 0) > 0.98
    fast = balance(
        pearl.load(EXAMPLE, set={"algorithm.env": "CartPole-v1", "algorithm.spaces": None})
    )
    assert fast.verdict.busiest == "gpu"
    assert (fast.halved_cores or 0) > 0.98
    assert verdict_sentence(fast.verdict).startswith("1 thread feeds all 108 SMs of NVIDIA A100")


def test_the_band_of_the_threads_is_that_of_the_estimates(monkeypatch) -> None:
    """By estimates without doubt it is one number; a GPU twice as doubtful has a wider one."""
    found = balance(pearl.load(EXAMPLE)).verdict
    assert found.threads_band is not None
    low, high = found.threads_band
    assert low < (found.threads or 0) < high
    rate, least, most = found.env_steps_per_s
    assert least < rate < most
    assert 0.5 < found.share < 1
    sure = gpu_balance.estimate

    def exact(*args: Any, **more: Any) -> Any:
        e = sure(*args, **more)
        return replace(e, low_s=e.latency_s, high_s=e.latency_s)

    monkeypatch.setattr(gpu_balance, "estimate", exact)
    one = balance(pearl.load(EXAMPLE)).verdict
    assert one.threads_band == pytest.approx((found.threads, found.threads))
    assert one.share == 1.0
    assert one.env_steps_per_s == pytest.approx((rate, rate, rate))
    assert re.match(r"It takes \d+ threads to feed", verdict_sentence(one))


def test_a_platform_with_two_gpus_is_refused() -> None:
    devices = {"cpu": FEW, "gpu": "t4", "gpu2": "l4"}
    links = [LINK, {**LINK, "between": ["cpu", "gpu2"]}]
    with pytest.raises(SpecError, match="one CPU and at most one GPU"):
        balance(pearl.load({**SLOW, "platform": {"devices": devices, "links": links}}))


def test_the_command_writes_what_its_schema_says_and_a_drawing(tmp_path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(json.dumps(SLOW))
    drawn = tmp_path / "b.svg"
    run = CliRunner().invoke(app, ["balance", str(file), "--plot", str(drawn), "--json", "-"])
    assert run.exit_code == 0, run.output
    assert problems(json.loads(run.stdout), "balance") == []
    image = ET.fromstring(drawn.read_text())
    shown = {t.text for t in image.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Cores, an actor each", "SMs, all cores", "Actors, all cores"} <= shown
    shown = " ".join(CliRunner().invoke(app, ["balance", str(file)]).stdout.split())
    assert "to feed all 108 SMs of NVIDIA A100" in shown
    assert "Half of the threads costs" in shown
    assert "threads : SM" not in shown


def test_gpu_timings_are_fitted_by_a_command_and_written_as_its_schema_says(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    rows = ["operator,batch,m,k,n,streams,seconds"]
    for i in range(1, 13):
        flops = 2 * (64 * i) ** 3
        rows.append(f"linear,1,{64 * i},{64 * i},{64 * i},0,{2e-5 + flops / 1e13}")
        rows.append(f"elementwise,1,{100 * i},1,{100 * i},2,{5e-6 + 8e4 * i * i / 8e11}")
    (tmp_path / "rows.csv").write_text("\n".join(rows) + "\n")
    arguments = ["calibrate-gpu", str(tmp_path / "rows.csv"), "--model", "Tesla T4"]
    arguments += ["--multiprocessors", "40", "--source", "a test"]
    run = CliRunner().invoke(app, [*arguments, "--json", "-"])
    assert run.exit_code == 0, run.output
    assert problems(json.loads(run.stdout), "calibrate-gpu") == []
    assert "elementwise" in CliRunner().invoke(app, arguments).stdout


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_number_of_the_catalogue_has_a_source_and_is_read_back(name: str) -> None:
    platform, entry, found = read_platform({"devices": {name: name}})
    assert found == []
    assert platform is not None
    assert entry is not None
    (device,) = platform.devices
    numbers = {"width", "max_lanes", "memory_bytes", "peak_flops_per_s", "memory_bytes_per_s"}
    numbers |= {"overhead_s", "idle_power_w", "active_power_w", *device.figures}
    assert {n for n in numbers if device.sources.get(n, YOURS) == YOURS} == set()
    again, _, _ = read_platform(unfold(entry, "again"))
    assert again is not None
    assert again.devices == platform.devices


def test_an_unknown_device_names_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"did you mean a100_sxm_40gb\?"):
        system(**{"platform.devices.gpu": "a100_sxm_40g"})
