"""Gradient steps by several threads of torch: planned where named, on so many cores, and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pearl
from pearl.planner.planner import build_problem
from pearl_devices import torch_threads

SPEC: dict[str, Any] = {"algorithm": {"name": "dqn", "env": "CartPole-v1", "num_envs": 4,
                                      "hidden": [32], "batch_size": 32,
                                      "replay": {"kind": "uniform", "capacity": 1000},
                                      "learning_starts": 100},
                        "limits": {"max_lanes": 2, "variants": {"learn": ["torch-2"]}},
                        "train": {"evaluate_every": 0, "final_episodes": 0}}  # fmt: skip


def changed(**limits: Any) -> dict[str, Any]:
    return {**SPEC, "limits": {**SPEC["limits"], **limits}}


def test_a_data_sheet_cpu_plans_them_on_so_many_cores() -> None:
    spec = {**changed(max_lanes=8), "platform": {"devices": {"cpu": "xeon_gold_6326"}}}
    spec["limits"]["variants"] = {"learn": ["torch", "torch-8"]}
    spec["algorithm"] = {**SPEC["algorithm"], "hidden": [1024, 1024], "batch_size": 512}
    spec["algorithm"]["learning_starts"] = 600
    placed = pearl.plan(pearl.load(spec)).task("learn")
    assert (placed.variant, placed.width) == ("torch-8", 8)
    spec["algorithm"] = SPEC["algorithm"]
    assert pearl.plan(pearl.load(spec)).task("learn").variant == "torch"


def of_sheet(hidden: int, batch: int, **train: Any) -> dict[str, Any]:
    """The spec on 16 cores of a data sheet, where nothing is named."""
    own = {"hidden": [hidden, hidden], "batch_size": batch, "learning_starts": 2 * batch}
    return {**SPEC, "algorithm": {**SPEC["algorithm"], **own}, "limits": {},
            "platform": {"devices": {"cpu": "xeon_gold_6326"}},
            "train": {**SPEC["train"], **train}}  # fmt: skip


def offered(spec: dict[str, Any]) -> dict[str, tuple[int, float]]:
    """Variant of the update → cores and seconds."""
    modes = build_problem(pearl.load(spec)).costs.of("learn")
    return {m.variant: (m.width, m.estimate.latency_s) for m in modes}


def test_threads_of_one_process_have_them_only_where_named() -> None:
    assert "torch-8" in offered(of_sheet(1024, 512, lanes="processes"))
    spec = of_sheet(1024, 512, lanes="threads")
    assert set(offered(spec)) == {"native", "torch"}
    assert set(offered({**spec, "limits": {"variants": {"learn": ["torch-8"]}}})) == {"torch-8"}


def test_without_the_cores_they_are_refused() -> None:
    with pytest.raises(pearl.InfeasibleError, match=r"torch-2 takes 2 cores, by threads of torch"):
        pearl.plan(pearl.load(changed(max_lanes=1)))


def test_a_run_has_them_and_the_same_bits_again(tmp_path, monkeypatch):
    import torch

    seen = []
    several = torch_threads.with_threads

    def watched(threads: int, call: Any) -> Any:
        def firing() -> None:
            seen.append(torch.get_num_threads())
            call()

        return several(threads, firing)

    monkeypatch.setattr(torch_threads, "with_threads", watched)
    parameters = []
    for name in ("a", "b"):
        trainer = pearl.compile(changed(), seed=3)
        assert trainer.plan.task("learn").width == 2
        run = trainer.train(steps=160, out=tmp_path / name)
        assert run.updates > 0
        state = trainer.policy_last.state_dict()
        parameters.append(np.concatenate([v.numpy().ravel() for v in state.values()]))
    assert set(seen) == {2}
    np.testing.assert_array_equal(*parameters)
