"""Job shops from files, and graphs of networkx."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pearl
from pearl import Edge, SpecError, Task, TaskGraph
from pearl.io import from_networkx, read_fjsp
from pearl.testing.graphs import random_limited

SHOP = "2 2\n2 1 1 3 2 1 4 2 1\n1 2 1 2 2 5\n"
"""Job 0: machine 0 in 3 s, then machine 0 in 4 s or 1 in 1 s; job 1: machine 0 in 2 s or 1 in 5."""


def test_a_shop_becomes_chains_on_machines(tmp_path: Path) -> None:
    (tmp_path / "shop.txt").write_text(SHOP)
    graph, costs = pearl.io.read_fjsp(tmp_path / "shop.txt")
    assert [t.name for t in graph.tasks] == ["j0o0", "j0o1", "j1o0"]
    assert [(e.src, e.dst) for e in graph.edges] == [("j0o0", "j0o1")]
    assert [(m.device, m.estimate.latency_s) for m in costs.of("j0o1")] == [
        ("m0", 4.0),
        ("m1", 1.0),
    ]
    plan = pearl.solve(graph, costs, objective="makespan", method="pearl.testing.exhaustive")
    assert plan.value == 5.0  # job 1 on machine 1 or after job 0's first


@pytest.mark.parametrize("first", [0, 1])
def test_machines_count_from_0_or_from_1_and_links_are_free(first: int, tmp_path: Path) -> None:
    text = f"1 3 9.5\n\n 2 1 {first} 0 2 {2 + first} 9.5e14 {1 + first} 2.5\n"
    (tmp_path / "shop.txt").write_text(text)
    graph, costs = read_fjsp(str(tmp_path / "shop.txt"))
    assert graph.name == "shop"
    assert [(m.tasks, m.device, m.estimate.latency_s) for m in costs.modes] == [
        (("j0o0",), "m0", 0.0), (("j0o1",), "m2", 9.5e14), (("j0o1",), "m1", 2.5),
    ]  # fmt: skip
    links = costs.platform.links
    assert [(k.a, k.b, k.latency_s, k.bytes_per_s, k.paid_by) for k in links] == [
        ("m0", "m1", 0.0, 1e18, "nobody"), ("m0", "m2", 0.0, 1e18, "nobody"),
    ]  # fmt: skip


def test_a_plain_job_shop_has_one_machine_for_each_operation(tmp_path: Path) -> None:
    """Machine 0 runs 3 s and then 4 s, machine 1 runs 2 s after the 3 s and 2 s at the start."""
    (tmp_path / "plain.txt").write_text("2 2\n0 3 1 2\n1 2 0 4\n")
    graph, costs = read_fjsp(tmp_path / "plain.txt")
    assert [(m.tasks, m.device, m.estimate.latency_s) for m in costs.modes] == [
        (("j0o0",), "m0", 3.0), (("j0o1",), "m1", 2.0),
        (("j1o0",), "m1", 2.0), (("j1o1",), "m0", 4.0),
    ]  # fmt: skip
    assert pearl.solve(graph, costs, objective="makespan").value == 7.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 2\n2 1 0 1 1 2 1\n", "machines 0 to 2 are used, 2 announced"),
        ("1 2\n1 1 -1 1\n", "machines -1 to -1 are used"),
        ("1 2\n1 1 1 1e15\n", "line 2: a time is below 0"),
        ("1 2\n0\n", "line 2: 0 operations announced, 1 numbers found"),
        ("", "first line must have"),
        ("two 2\n1 1 1 1\n", "first line must have"),
        ("2 2\n1 1 1 1\n", "2 jobs announced, 1 lines"),
        ("0 2\n", "0 jobs announced"),
        ("1 2 1.5 3\n1 1 1 1\n", "first line must have"),
        ("1 2 x\n1 1 1 1\n", "first line must have"),
        ("1 2\n1 1 1 5\n\n1 1 1 100\n", "line 4: 1 jobs are announced"),
        ("1 2\n1 1 1 5\n0 5\n5 0\n", "line 3: 1 jobs are announced"),
        ("1 2\n1 1 1 5\nsetups\n", "line 3: 1 jobs are announced"),
        ("2 2\n0 3 1 2\n0 3 0 2\n", "line 2: 0 operations announced"),
        ("1 2\n1 1 1\n", "line 2: not a job"),
        ("1 2\n1 1 1 x\n", "line 2: not a job"),
        ("1 2\n1 1 1 2 9\n", "line 2: 1 operations announced"),
        ("1 2\n1 0 1\n", "line 2: 1 operations announced"),
        ("1 2\n1 1 1 -2\n", "line 2: a time is below 0"),
        ("1 2\n1 1 1 nan\n", "line 2: a time is below 0"),
        ("1 2\n1 1 5 2\n", "machines 5 to 5 are used, 2 announced"),
    ],
)
def test_a_file_that_is_no_shop_is_told_so(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "shop.txt").write_text(text)
    with pytest.raises(SpecError, match=said):
        read_fjsp(tmp_path / "shop.txt")


@given(st.text(alphabet="0123456789 -.xn\n", max_size=60))
def test_any_text_gives_a_shop_or_a_sentence(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shop.txt").write_text(text)
        try:
            graph, _ = read_fjsp(Path(folder) / "shop.txt")
        except SpecError:
            return
        assert graph.tasks


@pytest.mark.parametrize("seed", range(8))
def test_a_graph_goes_to_networkx_and_back(seed: int) -> None:
    graph, _, _ = random_limited(seed)
    again = from_networkx(graph.to_networkx())  # where edges stand by their sources
    assert sorted(map(str, again.edges)) == sorted(map(str, graph.edges))
    assert replace(again, edges=graph.edges) == graph


def test_nodes_are_tasks_and_attributes_fields() -> None:
    flow = nx.DiGraph()
    flow.add_edge("decode", 7, bytes=3.0)
    graph = from_networkx(flow, "video")
    assert graph == TaskGraph(
        "video", (Task("decode"), Task("7")), (Edge("decode", "7", bytes=3.0),)
    )


def test_a_graph_has_its_name_and_its_own_attributes() -> None:
    assert from_networkx(nx.DiGraph([("a", "b")])).name == "graph"
    named = nx.DiGraph([("a", "b")], name="mine", env_steps=3)
    graph = from_networkx(named)
    assert (graph.name, graph.env_steps) == ("mine", 3)
    assert from_networkx(named, "other").name == "other"
    for owner, key in ((named.nodes["a"], "name"), (named.edges["a", "b"], "src")):
        owner[key] = "x"
        with pytest.raises(SpecError, match=f"has the attribute '{key}', which is no field"):
            from_networkx(named)
        del owner[key]
    named.graph["tasks"] = ()
    with pytest.raises(SpecError, match="the graph has the attribute 'tasks'"):
        from_networkx(named)


def test_what_is_no_task_graph_is_named() -> None:
    with pytest.raises(SpecError, match="DiGraph or MultiDiGraph"):
        from_networkx(nx.Graph([("a", "b")]))
    with pytest.raises(SpecError, match="DiGraph or MultiDiGraph"):
        from_networkx({"a": "b"})
    weighted = nx.DiGraph()
    weighted.add_edge("a", "b", weight=2)
    with pytest.raises(SpecError, match=r"edge a → b has the attribute 'weight'.*allowed are"):
        from_networkx(weighted)
    with pytest.raises(SpecError, match="appears twice"):
        from_networkx(nx.DiGraph([("1", 1)]))
