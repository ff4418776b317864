"""Seeded random graphs with costs, the DQN graph of `docs/theory.md`, and hypothesis strategies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from pearl.graph.limits import Limits
from pearl.graph.task_graph import Edge, Fusion, Task, TaskGraph
from pearl.planning.costs import CostTable, Mode
from pearl.planning.problem import Problem
from pearl.planning.timing import build_timed_graph
from pearl.solvers.methods import enumeration
from pearl.solvers.model.search_space import SearchSpace, cost_of
from pearl.solvers.period.period_form import PeriodForm
from pearl.testing.graphs import mode, star
from pearl_devices import Device, Kernel, Platform
from pearl_estimators import Estimate

COUNT = 50
"""Random graphs per objective on which the methods are compared."""


def dqn(k: int = 4, *, fused: bool = False, envs: int = 8) -> TaskGraph:
    """DQN with k gradient steps a vector step, the table of `docs/theory.md`."""
    found = (
        Task("act", Kernel("inference"), reads=("actor",)),
        Task("step", Kernel("env_step"), reads=("env",), writes=("env",)),
        Task("store", Kernel("replay_insert"), writes=("replay",)),
        Task("sample", Kernel("replay_sample"), reads=("replay",)),
        Task("learn", Kernel("update"), reads=("params",), writes=("params",)),
        Task("priorities", Kernel("replay_update"), writes=("replay",)),
        Task("sync", Kernel("param_sync"), reads=("params",), writes=("actor",), copies=True),
    )
    edges = (
        Edge("act", "step", bytes=64),
        Edge("step", "act", tokens_seq=1, bytes=256),
        Edge("step", "store", bytes=512, limit="insertion_lag"),
        Edge("store", "sample", k, 1),
        Edge("sample", "store", 1, k, k),
        Edge("sample", "learn", bytes=4096, limit="prefetch"),
        Edge("learn", "priorities", bytes=512, limit="priority_staleness"),
        Edge("sample", "priorities"),
        Edge("priorities", "sample", tokens_seq=1),
        Edge("store", "priorities", k, 1),
        Edge("priorities", "store", 1, k, k),
        Edge("learn", "sync", 1, k),
        Edge("sync", "act", tokens_seq=1, bytes=20_000, limit="policy_lag"),
        Edge("sync", "learn", k, 1, k),
        Edge("act", "sync"),
        *(Edge(t, t, tokens_seq=1) for t in ("step", "store", "learn", "sync")),
    )
    fusions = (
        (Fusion("learn", ("sample", "learn", "priorities"), Kernel("learn")),) if fused else ()
    )
    states = {"env": 1e3, "replay": 8e9, "params": 1e6, "actor": 1e5}
    return TaskGraph("dqn", found, edges, states, fusions, envs, k, 64)


DQN_S = {
    "act": 20e-6,
    "step": 40e-6,
    "store": 5e-6,
    "sample": 9e-6,
    "learn": 30e-6,
    "priorities": 3e-6,
    "sync": 4e-6,
}


def dqn_costs(
    platform: Platform, speed: Mapping[str, float], seconds: Mapping[str, float] = DQN_S
) -> CostTable:
    """Each task on each device at seconds / speed."""
    return CostTable(
        platform,
        tuple(
            mode(t, d.name, s / speed[d.name]) for t, s in seconds.items() for d in platform.devices
        ),
    )


def banded(
    costs: CostTable,
    below: float = 2.0,
    above: float = 3.0,
    of_links: tuple[float, float] | None = None,
) -> CostTable:
    """The table with the same band around every time, and that or another one of links."""
    links = (replace(k, band=of_links or (1 / below, above)) for k in costs.platform.links)

    def wide(e: Estimate) -> Estimate:
        return replace(e, low_s=e.latency_s / below, high_s=e.latency_s * above)

    return replace(
        costs,
        platform=replace(costs.platform, links=tuple(links)),
        modes=tuple(replace(m, estimate=wide(m.estimate)) for m in costs.modes),
    )


@st.composite
def timed_arcs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, float, int]]]:
    """Nodes and arcs; every cycle has a token, single arcs may have a negative number."""
    n = draw(st.integers(1, 7))
    shift = draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n))
    arcs = []
    for s, d, w, m in draw(
        st.lists(
            st.tuples(
                st.integers(0, n - 1),
                st.integers(0, n - 1),
                st.floats(0, 10, allow_subnormal=False),
                st.integers(0, 2),
            ),
            max_size=14,
        )
    ):
        tokens = max(m, 1) if d <= s else m
        arcs.append((s, d, w, tokens + shift[d] - shift[s]))
    return n, arcs


def act_and_learn(envs: int = 8, *, both: bool = False) -> TaskGraph:
    """Two tasks in a ring: `act` steps environments, which replicas may share out; `both`: `learn`
    too. Each writes a state of its own."""
    found = (
        Task("act", Kernel("act", resident_bytes=8e3), writes=("envs",), environments=envs),
        Task("learn", Kernel("learn"), writes=("net",), environments=envs if both else 0),
    )
    edges = (
        Edge("act", "learn", bytes=800.0),
        Edge("learn", "act", tokens_seq=1, bytes=100.0),
        Edge("act", "act", tokens_seq=1),
        Edge("learn", "learn", tokens_seq=1),
    )
    return TaskGraph("actors", found, edges, {"envs": 8e6, "net": 1e6}, env_steps=envs)


def share_modes(
    task: str, device: str, seconds: Mapping[int, float], whole: int, **more: float
) -> tuple[Mode, ...]:
    """Modes of a task by the environments they handle; `whole` is for the task unsplit."""
    return tuple(
        Mode(
            (task,),
            device,
            "v",
            1,
            Estimate(s, energy_j=more.get("energy", 0.0)),
            None if n == whole else n,
        )
        for n, s in seconds.items()
    )


NAMES = ("a", "b", "c")


@st.composite
def anything(draw: st.DrawFn) -> tuple[TaskGraph, CostTable, Limits]:
    """Graphs, costs and limits that need not make sense together: rates that disagree, cycles
    without tokens, tasks without modes, memory that cannot fit, limits that contradict. What the
    nouns themselves refuse raises its own error."""
    small = st.integers(0, 2)
    names = NAMES[: draw(st.integers(1, 3))]
    a_name = st.sampled_from(names)
    edges = {
        (src, dst): Edge(
            src,
            dst,
            draw(st.sampled_from([1, 1, 1, 2])),
            draw(st.sampled_from([1, 1, 1, 2])),
            draw(st.sampled_from([1, 1, 0, 2, 3])),
            bytes=draw(st.sampled_from([0.0, 1.0, 1e9])),
            limit=draw(st.sampled_from([None, None, "prefetch", "policy_lag"])),
        )
        for src, dst in draw(st.lists(st.tuples(a_name, a_name), max_size=5))
    }
    found = tuple(
        Task(
            n,
            Kernel(n, resident_bytes=draw(st.sampled_from([0.0, 1e6]))),
            environments=draw(st.sampled_from([0, 3])),
            group=draw(st.sampled_from([None, None, "g"])),
        )
        for n in names
    )
    pairs = [t for t in [("a", "b"), ("b", "c")] if set(t) <= set(names)]
    fused = draw(st.sampled_from([(), *pairs]))
    fusions = (Fusion("f", fused, Kernel("f")),) if fused else ()
    states = draw(st.sampled_from([{}, {}, {"s": 1e6}, {"s": 1e9}]))
    if states:
        found = tuple(replace(t, writes=("s",)) if t.name in "ab" else t for t in found)
    graph = TaskGraph("any", found, tuple(edges.values()), states, fusions, draw(small))
    some = tuple(
        Device(
            d,
            "null",
            width=draw(st.integers(1, 2)),
            max_lanes=draw(st.integers(1, 2)),
            memory_bytes=draw(st.sampled_from([5e5, 1.5e6, 1e9])),
            idle_power_w=draw(st.sampled_from([0.0, 10.0])),
            active_power_w=50.0,
            when_unused=draw(st.sampled_from(["idle", "off"])),
        )
        for d in ("p", "q")[: draw(st.integers(1, 2))]
    )
    times = st.sampled_from([0.0, 1e-6, 1e-3, 1.0, 1e3])
    modes: list[Mode] = []
    for unit in [*((n,) for n in names), *(f.tasks for f in fusions)]:
        for d in some:
            shares: tuple[int | None, ...] = draw(st.sampled_from([(None, 1, 2), (None,), ()]))
            for share in shares:
                seconds, joules = draw(times), draw(st.sampled_from([0.0, 1e-3, 1.0]))
                if share is None or len(unit) == 1:
                    estimate = Estimate(seconds, energy_j=joules)
                    modes.append(Mode(unit, d.name, "v", 1, estimate, share))
    extra = draw(st.dictionaries(st.tuples(a_name, a_name), st.sampled_from([-1e-6, 1.0])))
    key = (some[0].name, "v", 1)
    pairs_s = {((a, key), (b, key)): s for (a, b), s in extra.items() if a != b}
    limits = Limits(
        power_w=draw(st.sampled_from([*[None] * 4, 5.0, 100.0])),
        period_s=draw(st.sampled_from([*[None] * 5, 1e-3])),
        min_throughput_per_s=draw(st.sampled_from([*[None] * 5, 1e3])),
        policy_lag=draw(small),
        prefetch=draw(small),
        pin=draw(st.sampled_from([{}, {}, {}, {"a": "p"}, {"a": "q"}])),
        together=draw(st.sampled_from([(), tuple(pairs[:1])])),
        devices=draw(st.sampled_from([{}, {}, {}, {"a": ("p",)}, {names[-1]: ("q",)}, {"a": ()}])),
        variants=draw(st.sampled_from([{}, {}, {}, {"a": ("v",)}, {"a": ("none",)}])),
        memory_bytes=draw(st.sampled_from([{}, {}, {"p": 1e5}, {"q": 1e5}])),
        max_lanes=draw(st.sampled_from([None, None, 1])),
        replicas=draw(
            st.sampled_from([{}, {t.name: 2 for t in found if t.environments}, {"a": 2}])
        ),
    )
    return graph, CostTable(star(some), tuple(modes), pairs_s), limits


def least_by_enumeration(spaces: Sequence[SearchSpace], problem: Problem) -> float:
    """Return the least cost (seconds or joules of an iteration) of all assignments, without
    orders."""
    assigned = enumeration.assignments(spaces)
    costs = (cost_of(problem, a, build_timed_graph(a).order_bound_s)[0] for a in assigned)
    return min(costs, default=math.inf)


def least_by_program(spaces: Sequence[SearchSpace], problem: Problem) -> float:
    """Return the same cost by the period form."""
    least = math.inf
    for space in spaces:
        _, a, _ = PeriodForm(space, problem, None).run(least, 600.0)
        if a:
            least = min(least, cost_of(problem, a, build_timed_graph(a).order_bound_s)[0])
    return least
