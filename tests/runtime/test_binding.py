"""Calls bound to the slots that they see, by kept schedules, and jobs of a plan."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pearl.cluster.lane_server import LaneServer
from pearl.cluster.messages import STATE, pack
from pearl.errors import SpecError
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.binding import Binder
from pearl.runtime.protocol.control_block import ControlBlock, WorkRange
from pearl.runtime.protocol.single_lane import Job, jobs_of_plan
from tests.runtime.test_kept_schedules import place, run_arrays, schedule


@pytest.fixture
def bound():
    """Binds the lanes of a kept schedule. seen: slots of each call that was made."""

    def bind(case):
        p = schedule(case)
        _, arrays = run_arrays(p)
        log: list[str] = []

        def bind_call(job, seen, lane):
            names = {place(a, arrays) for n, a in seen.items() if a is not arrays.get(n)}
            text = f"{job.name} {' '.join(sorted(names))}".strip()
            return lambda: log.append(text)

        jobs = {t.name: Job((t.name,), t.kernel, "cpu", "native") for t in p.graph.tasks}
        context: Any = SimpleNamespace(
            protocol=p, arrays=arrays, jobs=jobs, span=WorkRange(3, 9, 1),
            learning=("sample", "learn", "priorities", "sync"),
            residency=SimpleNamespace(bind_call=bind_call),
        )  # fmt: skip
        tasks = tuple(p.graph.repetition)
        control = ControlBlock(tasks, 3, np.zeros(ControlBlock.size(len(tasks), 3), np.int64))
        binder = Binder(context, control, "lane")
        firings = [binder.bind_firing(f) for k in p.lanes for f in k.firings]
        return SimpleNamespace(
            p=p, arrays=arrays, log=log, binder=binder, control=control, f=firings
        )

    return bind


def test_calls_wait_work_and_publish_as_their_schedule_says(bound):
    x = bound("prioritised")
    cell, rows = x.control.count_cell, []
    for f in x.f:
        waits = [] if f.which is None else [a.tolist() for a in (f.which, f.base, f.step)]
        last = "ever" if f.last > 10**9 else f.last
        rows.append((f.name, f.offset, waits, len(f.calls), f.first, last, f.published))
    c = {t: cell(t) for t in x.p.graph.repetition}
    assert rows == [
        ("learn", 0, [[c["sample"], c["priorities"]], [0, -1], [2, 2]], 3, 4, 10,
         ((c["learn"], 1, 2),)),
        ("learn", 0, [[c["sample"], c["priorities"]], [1, 0], [2, 2]], 3, 3, 9,
         ((c["learn"], 2, 2),)),
        ("sync", 0, [[c["act"]], [1], [1]], 3, 3, "ever", ((c["sync"], 1, 1),)),
        ("act", 1, [[c["sync"]], [-1], [1]], 3, 0, 8, ((c["act"], 2, 1),)),
        ("step", 1, [[c["store"]], [0], [1]], 3, 0, 8, ((c["step"], 2, 1),)),
        ("store", 0, [[c["step"]], [0], [1]], 3, 2, 10, ((c["store"], 1, 1),)),
        ("sample", 0, [[c["learn"]], [-1], [2]], 3, 3, 9, ((c["sample"], 1, 2),)),
        ("priorities", 0, [[c["learn"]], [0], [2]], 3, 4, 10, ((c["priorities"], 1, 2),)),
        ("sample", 0, [[c["learn"]], [0], [2]], 3, 3, 9, ((c["sample"], 2, 2),)),
        ("priorities", 0, [[c["learn"]], [1], [2]], 3, 4, 10, ((c["priorities"], 2, 2),)),
    ]  # fmt: skip
    assert [f.asynchronous for f in x.f] == [False] * 10
    assert [f.name for f in x.f if f.interruptible] == ["learn", "learn"]
    for n in range(4):
        x.f[3].calls[n % 3]()
    assert x.log == ["act policy.q@1", "act policy.q@2", "act", "act policy.q@1"]  # fmt: skip
    assert x.f[6].calls[0] is x.f[8].calls[1]  # slot 0 at rounds 0 and 1: bound once
    x.log.clear()
    x.f[5].calls[2]()
    slot = "@1"  # (-1 + 2) mod 3
    names = ("action", "next_obs", "obs", "reward", "terminated", "truncated")
    assert x.log == [f"store {' '.join(f'step.{n}{slot}' for n in names)}"]
    x.control.write(cell("sync"), 7)
    x.f[2].calls[2]()
    assert x.arrays["version.sync"].tolist() == [0, 0, 8]
    assert x.f[2].calls[0].copied_ns == (0,)


def test_the_age_of_parameters_and_priorities_is_recorded(bound):
    x = bound("prioritised")
    age, stale = x.f[3].lag, x.f[8].lag
    versions = x.arrays["version.sync"]
    versions[:] = 5, 1, 2
    # due in round n is version n + 1; the slot of round n is (n − 2) mod 3; none is below 3
    assert [age(n) for n in (1, 2, 3, 5, 6)] == [0, 0, 1, 1, 4]
    x.control.write(x.control.count_cell("priorities"), 4)
    assert [stale(n) for n in (1, 3)] == [1 + 2 - 4 + 2, 1 + 6 - 4 + 2]
    assert x.binder.lags == {"policy_lag": {0: 2, 1: 2, 4: 1}, "priority_staleness": {1: 1, 5: 1}}
    assert [f.name for f in x.f if f.lag] == ["act", "sample", "sample"]


def test_groups_of_environments_take_turns(bound):
    x = bound("groups")
    inference, env_step = x.f[:2]
    assert (inference.asynchronous, env_step.asynchronous) == (True, False)
    assert (len(inference.calls), len(env_step.calls)) == (2, 2)
    for call in (*inference.calls, *env_step.calls):
        call()
    groups = [sorted({n.partition("@")[2] for n in text.split()[1:]}) for text in x.log]
    assert groups[:2] == [[], ["2"]]
    assert [text.count("@2") > 5 for text in x.log[2:]] == [False, True]


# --- jobs


@pytest.fixture
def plans(monkeypatch):
    kernels = {n: SimpleNamespace(kind=f"kind_{n}") for n in "abcx"}
    tasks = [SimpleNamespace(name=n, kernel=kernels[n]) for n in "abc"]
    fusions = [SimpleNamespace(tasks=("a", "b"), kernel=kernels["x"])]
    graph = SimpleNamespace(tasks=tasks, fusions=fusions)
    devices = [SimpleNamespace(name=n, kind=k) for n, k in
               (("cpu", "cpu"), ("g0", "gpu"), ("g1", "gpu"))]  # fmt: skip
    by_name = {d.name: d for d in devices}
    platform = SimpleNamespace(devices=devices, host="cpu", device=by_name.__getitem__)
    offered = {"kind_a": ["native"], "kind_b": ["native"], "kind_x": ["torch", "fast"]}
    monkeypatch.setattr(
        single_lane, "offers", lambda kernel, host: [(n, 0) for n in offered.get(kernel.kind, [])]
    )

    def jobs(*placed, emulate=False):
        by_task = {t: SimpleNamespace(device=d, variant=v, fused_with=f) for t, d, v, f in placed}
        plan = SimpleNamespace(task=by_task.__getitem__)
        found = jobs_of_plan(plan, graph, platform, emulate=emulate)
        return {
            t: (j.name, j.kernel.kind, j.device_kind, j.variant, j.number) for t, j in found.items()
        }

    return jobs


def test_tasks_have_the_call_and_the_device_of_their_plan(plans):
    found = plans(("a", "g1", "fast", ("b",)), ("b", "g1", "fast", ("a",)), ("c", "g0", "v", ()))
    one = ("a+b", "kind_x", "gpu", "fast", 1)
    assert found == {"a": one, "b": one, "c": ("c", "kind_c", "gpu", "v", 0)}
    apart = ("a", "g1", "v", ()), ("b", "g1", "v", ())
    with pytest.raises(
        SpecError, match=r"\['a', 'c'\] run as one call, .*; it allows \[\['a', 'b'\]\]"
    ):
        plans(("a", "g1", "v", ("c",)), *apart[1:], ("c", "g1", "v", ("a",)))
    one = ("a", "g1", "native", ()), ("b", "cpu", "other", ())
    with pytest.raises(SpecError, match=r"cannot compute c \(kind_c\), which the plan gives to g0"):
        plans(*one, ("c", "g0", "v", ()), emulate=True)
    both = ("a", "g1", "fast", ("b",)), ("b", "g1", "fast", ("a",))
    with pytest.raises(SpecError, match="cannot compute c"):
        plans(*both, ("c", "g0", "v", ()), emulate=True)


@pytest.mark.parametrize(("variant", "emulated"), [("fast", "fast"), ("other", "torch")])
def test_an_emulated_call_has_its_variant_or_the_first_of_the_host(
    plans, monkeypatch, variant, emulated
):
    monkeypatch.setattr(single_lane, "offers", lambda kernel, host: [("torch", 0), ("fast", 0)])
    found = plans(*((t, "g1", variant, ()) for t in "abc"), emulate=True)
    assert found["c"] == ("c", "kind_c", "cpu", emulated, 0)


# --- a lane server


def test_other_sources_of_kernels_are_refused_and_the_path_comes_first(monkeypatch):
    server = LaneServer()
    monkeypatch.setattr(sys, "path", ["/mine", "/both"])
    with pytest.raises(RuntimeError, match="this host has other sources of PEARL's kernels"):
        server.bind({"path": ["/theirs", "/both"], "sources": "other"}, pack([STATE]))
    assert sys.path == ["/theirs", "/both", "/mine"]
    with pytest.raises(RuntimeError, match="other sources"):
        server.bind({"path": None, "sources": "other"}, pack([STATE]))
    assert sys.path == ["/theirs", "/both", "/mine"]
