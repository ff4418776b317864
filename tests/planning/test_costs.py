"""The table of modes: what a call carries to and from other lanes, and how it is shared out."""

from __future__ import annotations

import pytest

from pearl.errors import InfeasibleError
from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.estimated_costs import _carried_bytes, build_cost_table
from pearl.testing.graphs import devices, mode, star
from pearl_devices import Device, Kernel, kernel


@pytest.mark.parametrize(
    ("tasks", "nbytes"),
    [
        (("a",), 10 + 8 / 2),  # a firing: what it sends to b, and half of what c sends
        (("b",), 10 + 6),
        (("c",), 2 * 6 + 8),
        (("a", "b"), 2 * (8 / 2 + 6)),  # a call: all firings of an iteration, and not a's to b
    ],
)
def test_a_call_carries_what_crosses_its_edge_once_a_firing(
    tasks: tuple[str, ...], nbytes: float
) -> None:
    edges = (
        Edge("a", "b", bytes=10.0),
        Edge("b", "c", 1, 2, bytes=6.0),
        Edge("c", "a", 2, 1, tokens_seq=2, bytes=8.0),
    )
    graph = TaskGraph("rates", tuple(Task(n, Kernel(n)) for n in "abc"), edges)
    assert graph.repetition == {"a": 2, "b": 2, "c": 1}
    assert _carried_bytes(mode(tasks, "cpu", 1.0), graph) == pytest.approx(nbytes)


CALL = ("a", "b")


def called(*modes: Mode, flops: tuple[float, float] = (0.0, 0.0)) -> tuple[TaskGraph, CostTable]:
    """a fires twice and b once, in one call of 12 s on the cpu; `modes` are the others."""
    kernels = [Kernel(n, flops=f) for n, f in zip("ab", flops, strict=True)]
    edges = (Edge("a", "b", 1, 2), Edge("b", "a", 2, 1, tokens_seq=2))
    graph = TaskGraph("call", tuple(Task(k.kind, k) for k in kernels), edges)
    platform = star(devices("cpu", "acc"), 1.0)
    return graph, CostTable(platform, (mode(CALL, "cpu", 12.0, variant="pair"), *modes))


def shared(graph: TaskGraph, costs: CostTable) -> dict[str, float]:
    return costs.shares(costs.of(*CALL)[0], graph)


def test_a_call_is_shared_out_by_its_variant_run_apart_else_by_the_fastest_of_its_device() -> None:
    a = (mode("a", "cpu", 1.0, variant="pair"), mode("a", "cpu", 0.1, variant="alone"))
    b = (mode("b", "cpu", 9.0, variant="slow"), mode("b", "cpu", 6.0, variant="alone"))
    elsewhere = mode("b", "acc", 1e-3, variant="pair")
    assert shared(*called(*a, *b, elsewhere)) == pytest.approx({"a": 2 / 8, "b": 6 / 8})


def test_a_call_is_shared_out_by_its_work_where_a_task_cannot_run_apart() -> None:
    graph, costs = called(mode("a", "cpu", 1.0), mode("b", "acc", 1.0), flops=(1e9, 6e9))
    assert shared(graph, costs) == pytest.approx({"a": 2 / 8, "b": 6 / 8})


def test_a_task_that_no_device_runs_is_an_error_with_the_reason_of_every_device() -> None:
    sizes = {"envs": 4, "obs": 4, "act": 0, "actor": (4, 16, 2)}
    acting, step = kernel("inference.ppo", sizes), Kernel("env_step", {"stack": 4})
    clock = {"clock_hz": 3e8, "ram_blocks": 100.0, "ram_block_bits": 20480.0, "ram_word_bits": 40.0}
    found = (
        Device("cpu", "cpu"),
        Device("array", "fpga", width=4, figures=clock, design="systolic"),
        Device("board", "fpga", width=4, figures=clock, design="released"),
    )
    for task, reasons in (
        (acting, ("the engines compute DQN and DDPG", "no design draws random numbers")),
        (step, ("no design stores stacked frames", "the released design runs gradient steps")),
    ):
        graph = TaskGraph("one", (Task("x", task),), (Edge("x", "x", tokens_seq=1),))
        with pytest.raises(InfeasibleError) as error:
            build_cost_table(graph, star(found), Limits(devices={"x": ("array", "board")}))
        assert "; cpu: kept off by the limits; " in str(error.value)
        for name, reason in zip(("array", "board"), reasons, strict=True):
            assert f"; {name}: {reason}" in str(error.value)
