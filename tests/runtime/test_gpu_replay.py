"""The replay on a GPU lane, all of it or its tree alone: training, and the memory it needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pearl.errors import InfeasibleError
from pearl_devices.gpu.memory import TorchMemory
from tests.gpu_lanes import LEARNING, gpu_plan
from tests.lanes import differing, trained

STEPS = 400
PRIORITISED = {"kind": "prioritised", "capacity": 400}
ROWS = ("store", "sample")


def on_gpu(rows: str, kind: str = "prioritised") -> dict[str, str]:
    """Tasks on the stand-in, and their variants; rows: those of the tasks with rows."""
    learned = {"priorities": "cuda"} if kind == "prioritised" else {}
    return {**LEARNING, **learned, **dict.fromkeys(ROWS, rows)}


@pytest.mark.parametrize("kind", ["uniform", "prioritised"])
def test_a_replay_on_the_stand_in_trains_what_one_on_the_cpu_does(kind: str) -> None:
    stored = {**PRIORITISED, "kind": kind}
    alone = trained(*gpu_plan("dqn", replay=stored), "one", steps=STEPS)
    assert alone.run.status == "done", alone.run.message
    for rows in ("cuda", "host-rows"):
        system, plan = gpu_plan("dqn", on_gpu(rows, kind), replay=stored)
        assert {t.variant for t in plan.tasks if t.task in ROWS} == {rows}
        other = trained(system, plan, "threads", steps=STEPS)
        assert other.run.status == "done", other.run.message
        assert differing(alone, other) == []
        assert np.unique(alone.session.arrays["replay.reward"]).size > 0


def test_rows_in_the_hosts_memory_have_no_twin_on_the_device(monkeypatch: Any) -> None:
    shapes: dict[str, list[tuple[int, ...]]] = {}
    twin = TorchMemory.twin

    def noted(self: Any, array: Any) -> Any:
        shapes[rows].append(array.shape)
        return twin(self, array)

    monkeypatch.setattr(TorchMemory, "twin", noted)
    for rows in ("cuda", "host-rows"):
        shapes[rows] = []
        trained(*gpu_plan("dqn", on_gpu(rows), replay=PRIORITISED), "one", steps=100)
    capacity = PRIORITISED["capacity"]
    assert sum(shape[0] == capacity for shape in shapes["cuda"]) == 6
    assert sum(shape[0] == capacity for shape in shapes["host-rows"]) == 0


def test_a_replay_too_large_for_a_gpu_is_infeasible_unless_the_host_keeps_its_rows() -> None:
    large = {"kind": "prioritised", "capacity": 100_000}
    small = {"memory": {"gpu": "1 MB"}}  # the rows need 5.4 MB, the tree 0.43 MB
    with pytest.raises(InfeasibleError, match="memory of gpu is too small: state replay") as caught:
        gpu_plan("dqn", on_gpu("cuda"), limits=small, replay=large)
    assert "variant host-rows (limits.variants) keeps the rows of a replay in" in str(caught.value)
    _, plan = gpu_plan("dqn", on_gpu("host-rows"), limits=small, replay=large)
    assert {t.device for t in plan.tasks if t.task in ROWS} == {"gpu"}
    none = {"memory": {"gpu": "300 kB"}}
    with pytest.raises(InfeasibleError, match="memory of gpu is too small: state replay"):
        gpu_plan("dqn", on_gpu("host-rows"), limits=none, replay=large)
    host = {"memory": {"gpu": "1 MB", "cpu": "4 MB"}}  # which holds the rows
    with pytest.raises(InfeasibleError, match="memory of cpu"):
        gpu_plan("dqn", on_gpu("host-rows"), limits=host, replay=large)
