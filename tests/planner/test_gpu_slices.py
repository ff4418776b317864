"""Slices of GPUs: the paper's gains, its search and its reductions against brute force, a spec."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from typer.testing import CliRunner

import pearl
import pearl_devices.gpu
from pearl.cli import app
from pearl.errors import SpecError
from pearl.planner.gpu_slices import (
    ENVIRONMENTS,
    MOST_SLICES,
    Loop,
    Probe,
    Role,
    SliceCosts,
    Work,
    plan_slices,
    reduction,
    reductions,
    search,
    throughput,
)
from pearl_devices import Device, Kernel
from tests.schemas.test_schemas import problems


def loop(seconds: tuple[float, ...], sent_s: float) -> Loop:
    """Shares of the paper's A100: a simulator's is ten times an agent's and five times a
    trainer's. sent_s: what the dedicated layout sends takes so long."""
    simulator, agent, trainer = map(Role, seconds, (1.0, 0.1, 0.2))
    return Loop(
        simulator, agent, trainer, agent_shared=0.2, trainer_shared=0.3, steps=1, state_bytes=0.0,
        action_bytes=0.0, reward_bytes=sent_s, model_bytes=0.0, slices=1, bytes_per_s=1.0,
    )  # fmt: skip


def gain(of: Loop, work: Work) -> float:
    return throughput(of, work, "colocated") / throughput(of, work, "dedicated")


PAPER = (6.0, 1.0, 2.0)  # the simulator six times as long as the agent, three times the trainer


def test_colocated_slices_gain_as_much_as_the_paper_says() -> None:
    assert gain(loop(PAPER, 2 * 7.0), "serving") == pytest.approx(2.58, abs=0.005)
    assert gain(loop(PAPER, 7 * 9.0), "training") == pytest.approx(5.46, abs=0.005)


def test_bytes_that_are_sent_count_as_in_the_formulas() -> None:
    roles = {"simulator": Role(3.0, 0.5), "agent": Role(1.0, 0.25), "trainer": Role(4.0, 0.125)}
    of = Loop(
        **roles, agent_shared=0.2, trainer_shared=0.3, steps=5, state_bytes=7.0, action_bytes=11.0,
        reward_bytes=13.0, model_bytes=17.0, slices=4, bytes_per_s=2.0,
    )  # fmt: skip
    share = (3 * 0.5 + 1 * 0.2 * 0.25 + 4 * 0.3 * 0.125) / 8
    sent = 5 * (7 + 11 + 13) + 17 + 2 * 3 * 17 / 4
    assert throughput(of, "training", "dedicated") == pytest.approx(1 / share / (8 + sent / 2))
    assert throughput(of, "training", "colocated") == pytest.approx(2 / (8 + 2 * 3 * 17 / 4 / 2))
    share = (3 * 0.5 + 1 * 0.2 * 0.25) / 4
    served = throughput(of, "serving", "dedicated")
    assert served == pytest.approx(1 / share / (4 + 5 * (2 * 7 + 11 + 13) / 2))
    assert throughput(of, "serving", "colocated") == pytest.approx(2 / 4)


def instance(seed: int) -> tuple[Callable[[int, int], Probe], float]:
    """A GPU and a loop: steps bound by launches, then by SMs; neighbours disturb each other; times
    that vary by half a percent; memory on a line."""
    draw = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    launch_s, each_s, sharp = between(2e-4, 5e-3), between(2e-8, 2e-6), draw.uniform(1.5, 6)
    fixed, each, whole = between(2e8, 2e9), between(2e3, 4e6), draw.choice([16e9, 40e9, 80e9])
    needed, disturbed = draw.uniform(0.05, 1), draw.uniform(0, 0.08)

    def probe(slices: int, count: int) -> Probe:
        work_s = count * each_s * max(1.0, slices * needed)
        step_s = (launch_s**sharp + work_s**sharp) ** (1 / sharp) * (1 + disturbed * (slices - 1))
        step_s *= 1 + random.Random(f"{seed} {slices} {count}").uniform(-0.005, 0.005)
        return Probe(count / step_s, fixed + each * count)

    return probe, whole


def test_the_search_is_near_the_best_with_half_of_the_probes() -> None:
    answered = 0
    for seed in range(300):
        probe, memory = instance(seed)
        asked: list[tuple[int, int]] = []

        def counted(slices: int, count: int, asked=asked, probe=probe) -> Probe:
            asked.append((slices, count))
            return probe(slices, count)

        found = search(counted, memory)
        every = [(k, probe(k, n)) for k in range(1, MOST_SLICES + 1) for n in ENVIRONMENTS]
        fit = [k * p.env_steps_per_s for k, p in every if p.memory_bytes <= memory / k]
        if not fit:
            assert found is None
            continue
        answered += 1
        assert found is not None
        assert found.env_steps_per_s >= 0.97 * max(fit), seed
        assert found.memory_bytes <= memory / found.slices
        assert found.probes == len(asked) <= len(every) / 2
        assert len(set(asked)) == len(asked)
    assert answered > 250


def test_memory_that_overflows_ends_the_search_before_it_is_tried() -> None:
    def probe(slices: int, count: int) -> Probe:
        held = 1e9 + 1e6 * count
        assert held <= 5.2e9 / slices or count <= 256, "asked for what the line says has no room"
        return Probe(float(count), held)

    found = search(probe, 5.2e9)
    assert found is not None
    assert (found.slices, found.environments) == (1, 4096)
    assert search(probe, 0.5e9) is None


@pytest.mark.parametrize("host", [1, 2, 7, 40])
@pytest.mark.parametrize("peer", [1, 3, 40])
def test_the_chosen_reduction_is_that_of_brute_force(host: int, peer: int) -> None:
    for n in range(1, 9):
        for m in range(1, 9):
            slices, size = m * n, 840
            ways = {("multi-process", 0): Fraction(2 * (slices - 1) * size, slices * host)}
            if m <= n:
                ways["multi-ring", m] = Fraction(4 * (n - 1) * size, n * peer)
            for k in range(1, m + 1):
                ends = n * (m - k) + k
                ring = Fraction(2 * (n - 1) * size, n * peer)
                ways["hierarchical", k] = ring + Fraction(2 * (ends - 1) * size, ends * host)
            found = reduction(n, m, size, host, peer)
            assert found.seconds == pytest.approx(float(min(ways.values())))
            assert found.seconds == pytest.approx(float(ways[found.name, found.on_ring]))
            each = {(r.name, r.on_ring): r.seconds for r in reductions(n, m, size, host, peer)}
            assert each == pytest.approx({way: float(s) for way, s in ways.items()})


LINK = {"between": ["cpu", "gpu"], "source": "test", "latency": "10 us", "bandwidth": "16 GB/s"}
SPEC: dict[str, Any] = {
    "algorithm": {"name": "ppo", "env": "CartPole-v1", "num_envs": 8},
    "platform": {"devices": {"cpu": "xeon_gold_6326", "gpu": "a100_sxm_40gb"}, "links": [LINK]},
}


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel has an implementation for the GPU."""

    def offers(kernel: Kernel, device: Device) -> tuple[tuple[str, int], ...]:
        return (("cuda", device.width),)

    monkeypatch.setattr(pearl_devices.gpu, "offers", offers)


def test_roles_are_the_tasks_by_what_they_compute(able: None) -> None:
    system = pearl.load(SPEC)
    costs = SliceCosts(system, system.platform.device("gpu"))
    named = {role: [t.name for t in tasks] for role, tasks in costs.tasks.items()}
    assert named == {
        "simulator": ["env_step"],
        "agent": ["inference"],
        "trainer": ["rollout_insert", "gae", "update", "param_sync"],
    }
    whole = costs.role("simulator")
    assert whole.seconds == pytest.approx(costs.seconds("simulator", 108))
    assert costs.seconds("simulator", math.ceil(108 * whole.share)) <= 1.05 * whole.seconds


def test_as_many_environments_are_tried_as_the_spec_allows(able: None) -> None:
    replay = {"name": "dqn", "env": "CartPole-v1", "replay": {"capacity": 1000}}
    found = plan_slices(pearl.load({**SPEC, "algorithm": replay}))
    assert found.environments == (128, 256, 512)
    assert "algorithm.replay.capacity" in found.refused


def test_slices_need_every_task_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    system = pearl.load(SPEC)
    monkeypatch.setattr(
        pearl_devices.gpu, "offers", lambda k, d: () if k.kind == "env_step" else (("cuda", 1),)
    )
    with pytest.raises(SpecError, match=r"gpu cannot run task env_step \(kernel env_step, CartPol"):
        plan_slices(system)
    bare = replace(system.platform, devices=system.platform.devices[:1], links=())
    with pytest.raises(SpecError, match="exactly one GPU is needed"):
        plan_slices(replace(system, platform=bare))


def test_the_command_cuts_gpus_where_it_is_asked(able: None, tmp_path: Any) -> None:
    file = tmp_path / "spec.json"
    slow = {**SPEC["algorithm"], "env": "Slow-v0", "spaces": {"obs": 4, "actions": 2}}
    file.write_text(json.dumps({**SPEC, "algorithm": slow}))
    ran = CliRunner().invoke(app, ["balance", str(file), "--gpus", "8", "--json", "-"])
    assert ran.exit_code == 0, ran.output
    value = json.loads(ran.stdout)
    assert problems(value, "balance") == []
    assert value["slices"]["gpus"] == 8
    text = CliRunner().invoke(app, ["balance", str(file), "--gpus", "8"]).stdout
    assert f"best: {value['slices']['best']['slices']} slices of" in text
    assert "sum of their gradients: multi-process" in text
