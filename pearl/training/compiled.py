"""`CompiledPlan`: a system with its graph and its plan, made once and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pearl.algorithms import algorithm
from pearl.errors import SpecError
from pearl.formatting import marked
from pearl.graph.sequential import program_order
from pearl.graph.task_graph import TaskGraph
from pearl.planner.stated_plan import check_stated_plan
from pearl.planning.plan_validation import completions, unfold_replicas
from pearl.planning.plans import Plan, load_plan, rename_former_tasks
from pearl.rooms import use_room
from pearl.runtime.clock import Clock, RealClock, VirtualClock
from pearl.runtime.protocol import single_lane
from pearl.runtime.protocol.lane_schedule import ExecutionSchedule
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl_devices import Platform, UnsupportedError, backend, torch_threads
from pearl_devices.kernels.interface import OBSERVED, changes
from pearl_devices.system import explain_no_processes, host_system

if TYPE_CHECKING:
    from pearl.cluster.lane_groups import LaneGroup
    from pearl.runtime.lanes.engine import Hosting

HOSTINGS: Mapping[Hosting, str] = {"ray": "pearl.cluster.ray_lane_client:"}
"""Hosting of the lanes of other hosts → its module. Its room may be left out."""


@dataclass(frozen=True)
class CompiledPlan:
    """A system, its plan, and the calls that the plan makes of the system's tasks.

    system: the loaded spec.
    graph: the tasks of the algorithm; a task that the plan splits is one task here.
    plan: of `graph`.
    replica_graph: `graph` with each replica of a split task as a task, without slack.
    protocol: the firings of every lane, on `replica_graph`.
    jobs: task of `replica_graph` → the call that runs it; members of a fused mode share one.
    order: tasks in the order of the plan's only lane; empty if there are several lanes.
    emulate: the host computes everything, on the plan's virtual clock.
    """

    system: System
    graph: TaskGraph
    plan: Plan
    replica_graph: TaskGraph
    protocol: ExecutionSchedule
    jobs: Mapping[str, single_lane.Job]
    order: tuple[str, ...]
    emulate: bool

    @property
    def hosting(self) -> Hosting:
        """The hosting of all lanes except the lane that updates."""
        if self.emulate or len(self.protocol.lanes) == 1:
            return "one"
        usual: Hosting = "processes" if host_system.PROCESSES else "threads"
        return self.system.train.lanes or ("ray" if self.remote_groups else usual)

    def check_hosting(self) -> None:
        """Refuse lanes in processes where the system offers none.

        Raises:
            SpecError: the ways out.
        """
        if self.hosting in ("processes", "ray") and not host_system.PROCESSES:
            raise SpecError(
                f"train.lanes: {self.hosting}: {explain_no_processes()}; set it to threads"
            )

    def check_torch_threads(self) -> None:
        """Refuse lanes in threads if one uses several threads of torch and another calls torch.

        The number of torch's threads belongs to the process and decides the last bits of both
        lanes.

        Raises:
            SpecError: the two tasks, and the two ways out.
        """
        torch = [t for t in self.plan.tasks if t.width_unit == "cores" and "torch" in t.variant]
        wide = [t for t in torch if torch_threads.threads_of(t.variant) > 1]
        others = [t.task for w in wide for t in torch if t.lane != w.lane]
        if self.hosting == "threads" and others:
            raise SpecError(
                f"train.lanes: threads of one process, and {wide[0].variant} of {wide[0].task} "
                f"would set how many threads torch has in {others[0]} too; set it to processes, "
                f"or leave {wide[0].variant} out of limits.variants"
            )

    def check_first_observations(self) -> None:
        """Refuse lanes on other hosts if a custom task changes observations.

        The first observations of environments there do not pass this host before they are used.

        Raises:
            SpecError: the task, and the two ways out.
        """
        own = [t.name for t in self.graph.tasks if OBSERVED in changes(t.kernel)]
        if own and self.hosting == "ray" and self.remote_groups:
            raise SpecError(
                f"plan: {own[0]} changes the network's input, and the first observations of "
                "environments on other hosts would not pass through it; plan for one host "
                "(platform.distribution), or let the environments change their observations"
            )

    @cached_property
    def remote_groups(self) -> tuple[LaneGroup, ...]:
        """The lanes that run on other hosts than the lane that updates."""
        host_of = {d.name: d.host for d in self.system.platform.devices}
        if len(set(host_of.values())) == 1:
            return ()
        groups = use_room(HOSTINGS["ray"], "training on several hosts").lane_groups
        return groups(self.protocol, host_of)  # type: ignore[no-any-return]

    @property
    def any_order(self) -> bool:
        """Whether actors and learner run without a common order."""
        return self.system.limits.any_order and not self.emulate

    @property
    def calls(self) -> list[single_lane.Job]:
        """Every call of an iteration, once."""
        return list({job.name: job for job in self.jobs.values()}.values())

    @property
    def policy(self) -> str:
        """The array of the parameters that act."""
        return f"policy.{algorithm(self.system.algorithm.name).POLICY}"

    def clock(self, iterations: int, at: int) -> Clock:
        """Return the clock of a run of `iterations` iterations that begins with iteration `at`."""
        if not self.emulate:
            return RealClock()
        platform = self.system.platform
        return VirtualClock(
            completions(self.protocol.plan, self.replica_graph, platform, iterations), at
        )


def compile_plan(
    system: System,
    plan: Plan,
    *,
    emulate: bool = False,
    check: bool = False,
) -> CompiledPlan:
    """Compile a system with a plan.

    The times of the plan are taken as stated: nothing is estimated or measured.

    check: first check the plan against graph and platform, as a plan from a file needs.

    Raises:
        SpecError: the plan does not fit the system, or cannot be run.
    """
    problem = plan.problem
    graph = problem.graph if problem and problem.system is system else build_graph(system)
    plan = rename_former_tasks(plan, [t.name for t in graph.tasks])
    if check:
        _check_devices(plan, system)
    whole, replicas = unfold_replicas(plan, graph)
    if check:
        check_stated_plan(whole, replicas, system.platform)
    protocol = ExecutionSchedule(whole, replicas)
    jobs = single_lane.jobs_of_plan(whole, replicas, system.platform, emulate=emulate)
    order: tuple[str, ...] = ()
    if protocol.is_single_lane:
        order = program_order(graph) if emulate else single_lane.one_lane_order(plan, graph)
    compiled = CompiledPlan(system, graph, plan, replicas, protocol, jobs, order, emulate)
    compiled.check_hosting()
    compiled.check_torch_threads()
    compiled.check_first_observations()
    return compiled


def _check_devices(plan: Plan, system: System) -> None:
    """Check that the platform has the devices of a plan.

    Raises:
        SpecError: the plan is of another platform.
    """
    here = [d.name for d in system.platform.devices]
    of = list(dict.fromkeys(t.device for t in plan.tasks))
    if not set(of) <= set(here):
        raise SpecError(
            f"the plan is of another platform: it runs on {', '.join(of)}, and this platform has "
            f"{', '.join(here)}; plan for this one (`pearl plan`), or leave the plan out"
        )


def recompile(
    about: Mapping[str, Any], system: System, file: Path, *, emulate: bool = False
) -> CompiledPlan:
    """Compile a system with the plan of a checkpoint.

    about: the checkpoint's description.

    Raises:
        SpecError: the plan cannot be followed here; `file` is named.
    """
    plan = load_plan(about["plan"])
    try:
        return compile_plan(system, plan, emulate=emulate, check=True)
    except SpecError as error:
        raise SpecError(
            *(f"{file}: {problem}" for problem in error.problems),
            f"{file}: the run cannot continue here with its plan; give another one (--plan)",
        ) from None


def require_devices(made: CompiledPlan) -> None:
    """Check that every device of the plan is on this machine and can be driven.

    Raises:
        SpecError: the devices that are not, each with the reason.
    """
    used, platform = {t.device for t in made.plan.tasks}, made.system.platform
    absent = [d.name for d in platform.devices if d.name in used and not d.real]
    if absent:
        here = platform.name == "host"
        raise SpecError(
            *(_obstacle(platform, name) for name in absent if here),
            f"the plan uses {marked(', '.join(absent), made.plan.simulated)} of {platform.name}, "
            f"which {'this version plans for but cannot drive' if here else 'this machine lacks'}; "
            "emulate the plan (--emulate, in Python emulate=True), or "
            + ("keep the tasks off it (limits.devices)" if here else "plan for platform host"),
        )


def _obstacle(platform: Platform, name: str) -> str:
    """Say why a device of this machine is not driven."""
    device = platform.device(name)
    number = [d.name for d in platform.devices if d.kind == device.kind].index(name)
    memory = getattr(backend(device.kind), "memory", None)
    try:
        if memory:
            memory(number)
    except UnsupportedError as error:
        return f"device {name}: {error}"
    return f"device {name}: nothing drives one of kind {device.kind}"


def check_devices(made: CompiledPlan) -> None:
    """Check that every device computes what the CPU computes.

    Raises:
        SpecError: the kernels that differ.
    """
    wrong = []
    jobs, platform = set(made.jobs.values()), made.system.platform
    for device in platform.devices:
        first_use = getattr(backend(device.kind), "first_use", None)
        number = [d.name for d in platform.devices if d.kind == device.kind].index(device.name)
        mine = [j for j in jobs if (j.device_kind, j.number) == (device.kind, number)]
        if first_use and mine:
            found = first_use(device, number, [(j.kernel, j.variant) for j in mine])
            wrong += [f"device {device.name}: {line}" for line in found]
    if wrong:
        way = "keep these tasks off it (limits.pin), or name other variants (limits.variants)"
        raise SpecError(*wrong, f"training on it would go wrong unseen: {way}")
