"""`verify`: a device that computes what the CPU does passes, and a wrong kernel is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pearl_devices import Device, kernel, trust_kind
from pearl_devices.gpu import verify as verification
from pearl_devices.gpu.driver import HostDriver
from pearl_devices.gpu.verify import Verdict, first_use, verify
from tests.gpu_lanes import a_fault_in_the_steps

STAND_IN = Device("gpu", "pearl_devices.gpu.stand_in", width=8)
trust_kind(STAND_IN.kind)
FAMILIES = ("env_step", "update.dqn", "replay_update")


def few(k: Any, variant: str) -> bool:
    return k.kind in FAMILIES


def test_every_kernel_that_is_offered_is_looked_at_and_passes() -> None:
    found = verify(STAND_IN, only=few)
    assert [v.text for v in found if not v.passed] == []
    pairs = {(v.kernel, v.variant) for v in found}
    assert pairs >= {("update.dqn", "eager"), ("update.dqn", "graph"), ("replay_update", "cuda")}


def test_a_wrong_kernel_is_named_with_how_much_it_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    a_fault_in_the_steps(monkeypatch)
    wrong = next(v for v in verify(STAND_IN, only=few) if not v.passed)
    assert (wrong.kernel, wrong.variant) == ("env_step", "cuda")
    assert wrong.worst > 0.1
    assert wrong.text.startswith("env_step cuda: ")
    assert "differs from the CPU's by" in wrong.text


def test_a_kernel_that_cannot_be_run_is_no_pass() -> None:
    found = Verdict("update.dqn", "graph", why="no CuPy")
    assert not found.passed
    assert found.text == "update.dqn graph: could not be run: no CuPy"


def test_the_first_use_looks_once_at_what_a_plan_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "cache_folder", lambda: tmp_path)
    launches, bound = [0], HostDriver.prepare_launch

    def counted(self: Any, *given: Any) -> Any:
        launches[0] += 1
        return bound(self, *given)

    monkeypatch.setattr(HostDriver, "prepare_launch", counted)
    k = kernel("replay_update", batch=4, steps=1, capacity=8, fanout=4)
    assert first_use(STAND_IN, 0, [(k, "cuda")]) == []
    once = launches[0]
    assert once > 0
    assert first_use(STAND_IN, 0, [(k, "cuda")]) == []
    assert launches[0] == once


def test_a_variant_that_was_asked_for_its_place_is_looked_at_where_a_plan_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "cache_folder", lambda: tmp_path)
    sizes = {"envs": 2, "obs": 4, "act": 0, "capacity": 8, "prioritised": 1, "fanout": 4}
    asked = kernel("replay_insert", sizes), "host-rows"
    assert first_use(STAND_IN, 0, [asked]) == []
    (file,) = (tmp_path / "verified").iterdir()
    assert file.read_text() == '["replay_insert host-rows"]'


def test_a_torch_program_is_compared_with_itself_on_the_cpu() -> None:
    def eager(k: Any, variant: str) -> bool:
        return (k.kind, variant) == ("update.a2c", "eager")

    (found,) = verify(STAND_IN, only=eager)
    assert found.passed, found.text
