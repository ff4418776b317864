"""The known answer of PEARL's released composer, as a graph that our solver solves.

Tables retyped from SysConfig/PT.csv of github.com/CatherineMeng/HeteroRL (CC0-1.0), in
milliseconds; throughput there is batch / T with T = t_sample + max(t_update + t_insert, t_train).
"""

from __future__ import annotations

from itertools import product

import pytest

from pearl import solve
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import Choice, CostTable, Mode
from pearl_devices import Device, Kernel, Link, Platform
from pearl_estimators import Estimate

BATCH = 512
DEVICES = ("CPU", "GPU1", "GPU2", "FPGA")

ALONE_MS = {  # priorities, insert, sample, train
    "CPU": (0.002, 0.0013, 0.03, 0.6),
    "GPU1": (0.001, 0.0006, 0.5, 0.2),
    "GPU2": (0.001, 0.0008, 0.4, 0.3),
    "FPGA": (0.0015, 0.00102, 0.1, 0.5),
}
TOGETHER_MS = {  # the same with replay and learner on one device
    "CPU": (0.002, 0.0001, 0.3, 0.6),
    "GPU1": (0.002, 0.0006, 0.6, 0.6),
    "GPU2": (0.001, 0.0012, 0.53, 0.53),
    "FPGA": (0.0015, 0.0013, 0.2, 0.5),
}
TASKS = ("priorities", "insert", "sample", "train")

SAMPLES_PER_MS = {  # (replay, learner), from the composer's own formula
    ("CPU", "GPU1"): 2226.087,
    ("FPGA", "GPU1"): 1706.667,
    ("CPU", "GPU2"): 1551.515,
    ("FPGA", "GPU2"): 1280.0,
    ("CPU", "FPGA"): 966.038,
    ("GPU2", "GPU1"): 853.333,
    ("FPGA", "FPGA"): 731.429,
    ("CPU", "CPU"): 568.889,
    ("GPU1", "GPU1"): 426.667,
}


def graph() -> TaskGraph:
    def task(name: str, state: str) -> Task:
        return Task(name, Kernel(name), writes=(state,))

    return TaskGraph(
        "pearl",
        (
            task("sample", "replay"),
            task("train", "learner"),
            task("priorities", "replay"),
            task("insert", "replay"),
        ),
        (
            Edge("sample", "train"),
            Edge("train", "sample", tokens_seq=1),
            Edge("sample", "priorities"),
            Edge("priorities", "sample", tokens_seq=1),
            Edge("priorities", "insert"),
            Edge("insert", "priorities", tokens_seq=1),
            Edge("insert", "sample", tokens_seq=1),
            Edge("sample", "insert"),
        ),
        {"replay": 1.0, "learner": 1.0},
        updates=1,
        batch=BATCH,
    )


def costs() -> CostTable:
    """Two lanes a device; transfers cost nothing, as in the composer's formula."""
    found = tuple(Device(d, "null", width=2, max_lanes=2) for d in DEVICES)
    links = tuple(Link("CPU", d, 0.0, 1e12) for d in DEVICES[1:])
    modes, extra = [], dict[tuple[Choice, Choice], float]()
    for d in DEVICES:
        key = (d, "given", 1)
        for task, alone, together in zip(TASKS, ALONE_MS[d], TOGETHER_MS[d], strict=True):
            modes.append(Mode((task,), d, "given", 1, Estimate(alone / 1e3)))
            other = "train" if task != "train" else "sample"
            extra[(task, key), (other, key)] = (together - alone) / 1e3
    return CostTable(Platform("pearl", found, links, "CPU"), tuple(modes), extra)


@pytest.mark.parametrize("method", ["milp", "pearl.testing.exhaustive"])
def test_unpinned_the_best_pair_is_replay_on_cpu_and_learner_on_gpu1(method: str) -> None:
    plan = solve(graph(), costs(), method=method)
    assert (plan.task("sample").device, plan.task("train").device) == ("CPU", "GPU1")
    assert plan.rates["samples_per_s"] == pytest.approx(2226.087e3, rel=1e-6)
    assert plan.status == "optimal"


def test_all_sixteen_pairs_give_the_composers_figures() -> None:
    found = {}
    for replay, learner in product(DEVICES, DEVICES):
        limits = Limits(pin={"sample": replay, "train": learner})
        plan = solve(graph(), costs(), limits=limits)
        found[replay, learner] = plan.rates["samples_per_s"] / 1e3
        times = TOGETHER_MS if replay == learner else ALONE_MS
        update, insert, sample = times[replay][:3]
        train = times[learner][3]
        formula = BATCH / (sample + max(update + insert, train))
        assert found[replay, learner] == pytest.approx(formula, rel=1e-9)
    for pair, expected in SAMPLES_PER_MS.items():
        assert found[pair] == pytest.approx(expected, rel=1e-6)
    ranked = sorted(found, key=lambda pair: -found[pair])
    assert ranked[:2] == [("CPU", "GPU1"), ("FPGA", "GPU1")]
    assert ranked[-1] == ("GPU1", "GPU1")
