"""Lanes on a device with memory of its own: what crosses, and that it computes what a CPU does."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pearl.runtime.lanes import call_timer
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.lane_recorder import Sampling
from pearl.training.trainer import Trainer
from pearl_devices import cpu
from pearl_devices.gpu import stand_in
from pearl_devices.gpu.memory import TorchMemory
from tests.gpu_lanes import LEARNING, gpu_plan
from tests.lanes import differing, trained

STEPS = 400


@pytest.fixture(scope="module")
def one() -> Any:
    """DQN with its gradient steps on the stand-in, all lanes in this thread."""
    return trained(*gpu_plan("dqn"), "one", steps=STEPS)


@pytest.mark.parametrize("hosting", ["threads", "processes"])
def test_a_gpu_lane_computes_the_same_wherever_the_other_lanes_run(one: Any, hosting: Any) -> None:
    assert one.run.status == "done", one.run.message
    other = trained(*gpu_plan("dqn"), hosting, steps=STEPS)
    assert other.run.status == "done", other.run.message
    assert differing(one, other) == []


def test_eager_on_the_stand_in_computes_what_torch_computes_on_the_cpu(one: Any) -> None:
    system, plan = gpu_plan("dqn", {}, {"learn": "torch"})
    assert {t.device for t in plan.tasks} == {"cpu"}
    alone = trained(system, plan, "one", steps=STEPS)
    assert [n for n in differing(one, alone) if not n.startswith("version.")] == []


def test_no_call_of_a_gpu_lane_comes_from_the_cpu(one: Any, monkeypatch: Any) -> None:
    bound: dict[str, set[str]] = {}

    def noted(place: str, bind: Any) -> Any:
        def note(kernel: Any, variant: str, seen: Any) -> Any:
            bound.setdefault(place, set()).add(kernel.kind)
            return bind(kernel, variant, seen)

        return note

    monkeypatch.setattr(cpu, "bind", noted("cpu", cpu.bind))
    monkeypatch.setattr(stand_in, "bind", noted("gpu", stand_in.bind))
    trainer = trained(*gpu_plan("dqn"), "one", steps=100)
    kinds = {t.name: t.kernel.kind for t in trainer.graph.tasks}
    placed = {t.task: t.device for t in trainer.plan.tasks}
    assert [t for t, device in placed.items() if device == "gpu"] == ["learn", "sync"]
    for place in ("cpu", "gpu"):
        assert bound[place] == {kinds[t] for t, device in placed.items() if device == place}


@pytest.mark.parametrize("hosting", ["one", "threads"])
def test_copies_to_and_from_a_device_are_transfer(hosting: str, monkeypatch: Any) -> None:
    """Each call is timed, for a sum of a few calls may be less than that of all copies."""
    every = "pearl.training.lane_binding.plan_sampling"
    monkeypatch.setattr(every, lambda *_: Sampling(every=1))
    run = trained(*gpu_plan("dqn"), hosting, steps=400).run  # type: ignore[attr-defined]
    calls = {c.call: c for k in run.lanes for c in k.calls}
    moved = {task for task, c in calls.items() if c.transfer_s > 0}
    assert moved == {"learn", "sync"}, "batches go there, parameters come back"
    for task in moved:
        assert calls[task].busy_s > 0


LOOP = dict.fromkeys(("act", "step", "store", "sample"), "cuda")


@pytest.mark.parametrize("hosting", ["one", "threads"])
@pytest.mark.parametrize("on_gpu", [{}, LOOP], ids=["two lanes", "one lane"])
def test_a_call_is_timed_until_the_device_has_done_its_work(
    on_gpu: dict[str, str], hosting: str, monkeypatch: Any
) -> None:
    """By a clock of each thread that such work alone moves."""
    firing, late_ns, clock = TorchMemory.firing, 1000, threading.local()

    def now_ns() -> int:
        return getattr(clock, "ns", 0)

    def work() -> None:
        clock.ns = now_ns() + late_ns

    def slow(self: Any, call: Any, kernel: Any, *given: Any) -> Any:
        fire = firing(self, call, kernel, *given)

        def begun() -> None:
            fire()

        learns = kernel.kind in ("update.dqn", "param_sync")
        begun.wait = work if learns else lambda: None  # type: ignore[attr-defined]
        return begun

    monkeypatch.setattr(TorchMemory, "firing", slow)
    for module in (call_timer, single_lane):
        monkeypatch.setattr(module, "perf_counter_ns", now_ns)
    done = trained(*gpu_plan("dqn", {**on_gpu, **LEARNING}), hosting, steps=160).run
    assert done.status == "done", done.message
    measured = {t.task: t.measured_s for t in done.tasks}
    assert {t for t, seconds in measured.items() if seconds} == {"learn", "sync"}
    assert measured["learn"] == measured["sync"] == 1e-9 * late_ns


@pytest.mark.parametrize("left_out", ["loads", "stores"])
def test_a_copy_that_is_left_out_changes_what_is_computed(
    one: Any, left_out: str, monkeypatch: Any
) -> None:
    firing = TorchMemory.firing

    def without(self: Any, call: Any, kernel: Any, loads: Any, stores: Any, lane: str) -> Any:
        given = {"loads": loads, "stores": stores, left_out: ()}
        return firing(self, call, kernel, given["loads"], given["stores"], lane)

    monkeypatch.setattr(TorchMemory, "firing", without)
    assert differing(one, trained(*gpu_plan("dqn"), "one", steps=STEPS)) != []


def test_only_what_crosses_is_copied(monkeypatch: Any) -> None:
    crossed: dict[str, tuple[list[str], list[str]]] = {}
    firing = TorchMemory.firing

    def noted(self: Any, call: Any, kernel: Any, loads: Any, stores: Any, lane: str) -> Any:
        names = {id(array): name for name, array in seen.items()}
        crossed[kernel.kind] = tuple(  # type: ignore[assignment]
            sorted(names[id(array)] for array, _ in pairs) for pairs in (loads, stores)
        )
        return firing(self, call, kernel, loads, stores, lane)

    monkeypatch.setattr(TorchMemory, "firing", noted)
    system, plan = gpu_plan("dqn")
    trainer = Trainer(system, plan)
    seen = trainer.session.arrays
    trainer.train(steps=100)
    batch = ["action", "discount", "next_obs", "obs", "reward", "weight"]
    assert crossed["update.dqn"] == ([f"batch.{name}" for name in batch], [])
    assert crossed["param_sync"] == ([], ["policy.q"])


def test_a_twin_is_memory_of_its_own(one: Any) -> None:
    arrays = one.session.arrays
    twin = stand_in.memory(0).twin(arrays["learner.q"])
    before = arrays["learner.q"].copy()
    twin.zero_()
    assert (arrays["learner.q"] == before).all()
