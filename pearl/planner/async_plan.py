"""The plan of a spec with `any_order`: each copy of the actors has a lane, all else shares one."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

from pearl.algorithms.interface import inserted_tasks
from pearl.errors import InfeasibleError, SpecError
from pearl.graph.limits import Limits
from pearl.graph.parallel_edges import key_edges
from pearl.graph.period import expand
from pearl.graph.sequential import program_order
from pearl.graph.task_graph import TaskGraph
from pearl.planning.plan_builder import Proof, build_plan
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem, split_problem
from pearl.planning.replicas import ReplicaSplit
from pearl.planning.timing import Assignment, build_timed_graph

ACTING = ("act", "step")
STORING = (*ACTING, "store")
"""Tasks that a step in any order may lead to."""
NOTE = (
    "in any order: copies store their rows in the order in which they are ready, so a run is "
    "not reproducible; rates are those of mean times in lock-step"
)


def check(graph: TaskGraph, limits: Limits) -> int:
    """Return the number of copies of the actors.

    Raises:
        SpecError: the graph or the limits allow no copies in any order; the text gives the reason.
    """
    copies = limits.replicas.get("step", 1)
    tasks = {t.name: t for t in graph.tasks}
    problems = []
    if copies < 2 or limits.replicas.get("act", 1) != copies:
        problems.append(
            "limits.any_order needs copies of the actors, with equal numbers of act and "
            "step, for example limits.replicas: {act: 4, step: 4}"
        )
    if "store" not in tasks:
        problems.append(
            f"limits.any_order: {graph.name} has no replay; its rollouts belong to one policy"
        )
    if not problems:
        envs = tasks["step"].environments
        if not envs or envs % copies:
            problems.append(
                f"limits.any_order: {envs} environments that can be shared out among {copies} "
                "copies; they must be a multiple of the copies, and not normalised"
            )
        if tasks["sample"].kernel.dim("n_step") > 1:
            problems.append(
                "limits.any_order: algorithm.n_step must be 1, because the next row of an "
                "environment may be anywhere"
            )
        others = [e.dst for e in graph.edges if e.src == "step" and e.dst not in STORING]
        others += [t.name for t in inserted_tasks(graph) if t.name not in others]
        if others:
            problems.append(
                f"limits.any_order: {', '.join(others)} works on transitions before they are "
                "stored, of all copies in order"
            )
        if limits.learners > 1:
            problems.append("limits.any_order: learners must be 1")
        if limits.env_groups > 1:
            problems.append("limits.any_order: env_groups must be 1")
        if limits.prefetch or limits.insertion_lag or limits.priority_staleness:
            problems.append("limits.any_order: of the slack limits only policy_lag may be above 0")
    if problems:
        raise SpecError(*problems)
    return copies


def _no_lane_error(task: str, where: str) -> InfeasibleError:
    return InfeasibleError(
        f"limits.any_order: {task} cannot run on a free lane of {where}",
        [{"kind": "task", "name": task, "need": 1, "limit": 0, "unit": "modes"}],
    )


def solve(problem: Problem) -> Plan:
    """Return the plan with these lanes. Each task has its fastest mode on the host device; a copy
    has it on the same device of the host with the most free lanes. Nothing is proven. The period is
    that of mean times in lock-step: a run in any order is as fast or faster.

    Raises:
        SpecError: the graph or the limits allow no copies in any order.
        InfeasibleError: a task cannot run on a free lane.
    """
    begin, limits = time.perf_counter(), problem.limits
    copies = check(problem.graph, limits)
    envs = problem.graph.task("step").environments
    split = ReplicaSplit(ACTING, (envs // copies,) * copies)
    copied = split_problem(problem, split)
    replica_graph, table, platform = copied.graph, copied.costs, copied.costs.platform
    lag = {
        key: limits.policy_lag
        for key, e in key_edges(replica_graph.edges).items()
        if e.limit == "policy_lag"
    }
    x = expand(replica_graph.with_slack(lag))
    home = platform.device(platform.host)
    room = {d.name: d.max_lanes for d in platform.devices if d.kind == home.kind}
    room = {name: n for name, n in room.items() if name == home.name or platform.device(name).host}
    most = min(sum(room.values()), limits.max_lanes or sum(room.values()))
    if copies + 1 > most:
        raise SpecError(
            f"limits.any_order: {copies} copies need {copies + 1} lanes; max_lanes allows {most}"
        )
    copy = {u: part.replica for u in x.units if (part := replica_graph.task(u[0]).part)}
    possible_devices = {u: {m.device for m in table.of(*u)} & set(room) for u in x.units}
    actor_devices: list[str] = []
    for unit in x.units:
        if unit not in copy and home.name not in possible_devices[unit]:
            raise _no_lane_error(unit[0], home.name)
    left = {**room, home.name: room[home.name] - 1}
    for replica in range(copies):
        own_units = [u for u in x.units if copy.get(u) == replica]
        free = [d for d in room if left[d] and all(d in possible_devices[u] for u in own_units)]
        if not free:
            raise _no_lane_error(own_units[0][0], " or ".join(room))
        actor_devices.append(max(free, key=lambda d: left[d]))
        left[actor_devices[-1]] -= 1
    modes, lanes = [], []
    for unit in x.units:
        replica = copy.get(unit, copies)
        device = [*actor_devices, home.name][replica]
        modes_there = [m for m in table.of(*unit) if m.device == device]
        modes.append(min(modes_there, key=lambda m: m.estimate.occupancy_s))
        lanes.append(actor_devices[:replica].count(device))
    assignment = Assignment(x, table, tuple(modes), tuple(lanes))
    timed = build_timed_graph(assignment)
    fired: Counter[str] = Counter()
    place: dict[tuple[str, int], int] = {}
    for position, task in enumerate(program_order(replica_graph)):
        place[task, fired[task]] = position
        fired[task] += 1

    def turn(node: int) -> int:
        """Return the due time of a firing, or of the sender of a transfer."""
        name, firing = timed.names[node]
        return place[name.partition(">")[0], firing]

    orders = {
        name: tuple((i, 0) for i in sorted(nodes, key=turn)) for name, nodes in timed.lanes.items()
    }
    spent_s = time.perf_counter() - begin
    proof = Proof("throughput", "any_order", 0, spent_s, 0.0, 0.0, timed_out=False)
    return replace(build_plan(assignment, orders, proof), note=NOTE, problem=problem)
