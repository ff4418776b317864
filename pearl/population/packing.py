"""Choose how many runs train at the same time, and on how many cores each, to end all soonest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pearl.errors import InfeasibleError, SpecError
from pearl.formatting import count
from pearl.graph.task_graph import TaskGraph
from pearl.planner import plan_cache
from pearl.planner.planner import build_problem
from pearl.planning.plans import Plan
from pearl.population.driver import Journal, VirtualExecutor, drive
from pearl.population.members import Population
from pearl.population.schedulers import GridScheduler, RunStage
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl.training import memory
from pearl.training.compiled import CompiledPlan, compile_plan
from pearl_devices.system import host_system
from pearl_estimators.host import calibration_file
from pearl_estimators.host.interference import Shares, share_name
from pearl_estimators.sealed_files import CalibrationError, OutdatedError

PROCESS_BYTES = 400e6
"""Memory of a run without its arrays (assumed; 230 MB was measured with native kernels)."""


@dataclass(frozen=True)
class RunHost:
    """A host that can execute runs: this machine, or a node of a cluster.

    name: of the node; empty for this machine.
    cores: core numbers of the CPU that runs may use.
    free_bytes: free main memory; None if unknown.
    gpus: whether the host may have devices other than the CPU.
    """

    name: str
    cores: tuple[int, ...]
    free_bytes: float | None
    gpus: bool = True


def local_host() -> tuple[RunHost, ...]:
    """Describe this machine as the only host."""
    free, swap = host_system.free_bytes()
    return (RunHost("", tuple(host_system.usable_cpus()), None if free is None else free + swap),)


@dataclass(frozen=True)
class ResourceRequest:
    """The resources that a run of a plan needs from a host.

    cores: number of CPU cores.
    shares: device other than the CPU → fraction of its width, 0 to 1.
    bytes: main memory.
    seconds: predicted training time without other runs.
    slowdown: fraction of `seconds` that is added while a similar run trains next to it; None if
        unknown.
    """

    cores: int
    shares: Mapping[str, float]
    bytes: float
    seconds: float
    slowdown: float | None


@dataclass(frozen=True)
class Packing:
    """A schedule of a population.

    cores: limit of the cores of a run.
    slots: the core numbers of each slot.
    hosts: the host of each slot, by name.
    plans: of every setting.
    needs: of every setting.
    seconds: predicted training time of all runs.
    bound: what limits the number of slots, as text.
    timeline: (run, slot, begin in seconds, end in seconds) of a plain sweep, predicted.
    """

    cores: int
    slots: tuple[tuple[int, ...], ...]
    hosts: tuple[str, ...]
    plans: tuple[Plan, ...]
    needs: tuple[ResourceRequest, ...]
    seconds: float
    bound: str
    timeline: tuple[tuple[str, int, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object, without the plans."""
        return {
            "cores_per_run": self.cores,
            "runs_at_once": len(self.slots),
            "predicted_s": self.seconds,
            "slots": [list(slot) for slot in self.slots],
            "hosts": list(self.hosts),
            "bounded_by": self.bound,
            "timeline": [
                {"run": run, "slot": slot, "begin_s": begin_s, "end_s": end_s}
                for run, slot, begin_s, end_s in self.timeline
            ],
        }


class Planner:
    """Plans the settings for runs on some cores. Settings with equal graphs share a plan.

    cores: limit of the cores of a run.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._made: list[tuple[TaskGraph, System, Plan]] = []

    def plan(self, system: System) -> Plan:
        """Return the plan of a system. Raises InfeasibleError if no plan meets its limits."""
        graph = build_graph(system)
        for other_graph, other, plan in self._made:
            if other_graph == graph and _plans_alike(other, system):
                return plan
        max_lanes = min(self.cores, system.limits.max_lanes or self.cores)
        bounded = replace(
            system,
            limits=replace(system.limits, max_lanes=max_lanes),
            train=replace(system.train, evaluate_in="pauses"),  # other runs use the other cores
        )
        found = plan_cache.find_plan(build_problem(bounded))
        self.add_plan(system, found)
        return found

    def add_plan(self, system: System, plan: Plan) -> None:
        """Add a plan of a system that was made before."""
        self._made.append((build_graph(system), system, plan))


def _plans_alike(one: System, other: System) -> bool:
    """Whether two systems with equal graphs have the same plan."""
    return (one.platform, one.objective, one.limits) == (
        other.platform,
        other.objective,
        other.limits,
    )


def request_resources(made: CompiledPlan, slowdowns: Shares) -> ResourceRequest:
    """Compute what a run of a plan needs. slowdowns: of pairs of calls, from the calibration."""
    plan, platform = made.plan, made.system.platform
    widths: dict[str, int] = {}
    for lane in plan.lanes:
        if lane.width:
            widths[lane.device] = widths.get(lane.device, 0) + lane.width
    cores = max(widths.pop(platform.host, 1), 1)
    jobs = made.calls
    kernels = [job.kernel for job in jobs]
    arrays = sum(memory.array_bytes(kernels).values())
    rate = plan.rates["env_steps_per_s"]
    steps = made.system.train.steps
    return ResourceRequest(
        cores=cores,
        shares={name: width / platform.device(name).width for name, width in widths.items()},
        bytes=arrays + PROCESS_BYTES,
        seconds=steps / rate if rate > 0 else math.inf,
        slowdown=_slowdown(made, slowdowns),
    )


def _slowdown(made: CompiledPlan, slowdowns: Shares) -> float | None:
    """The fraction of its time that a run takes longer next to a similar run.

    The sum is over the pairs of calls that the calibration has measured; None if it has none.
    """
    load: dict[str, float] = {}
    for job in made.calls:
        placed = [made.protocol.plan.task(task) for task in job.tasks]
        share = sum(p.seconds * p.firings for p in placed) / made.plan.period_s
        name = share_name(job.kernel, job.variant)
        load[name] = load.get(name, 0.0) + share
    pairs = [(a, b) for a in load for b in load if b in slowdowns.get(a, {})]
    if not pairs:
        return None
    return math.fsum(load[a] * load[b] * slowdowns[a][b] for a, b in pairs)


def calibrated_slowdowns() -> Shares:
    """Return the slow-down of calls on two cores by each other, as calibrated; empty if unknown."""
    try:
        calibration = calibration_file.load_calibration()
    except (CalibrationError, OutdatedError):
        return {}
    return calibration.beside if calibration else {}


def allocate_slots(
    needs: Sequence[ResourceRequest], runs: int, hosts: Sequence[RunHost]
) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], str]:
    """Allocate slots that are large enough for any of the runs, on the hosts in turn.

    Returns the host and the core numbers of each slot, and what limits the number of slots.

    Raises:
        SpecError: not even one run fits.
    """
    cores, size = max(n.cores for n in needs), max(n.bytes for n in needs)
    slots: list[tuple[int, int, str, tuple[int, ...]]] = []
    bound = ""
    for rank, host in enumerate(hosts):
        bounds = {f"{count(len(host.cores))} cores": len(host.cores) // cores}
        if host.free_bytes is not None:
            bounds[f"{host.free_bytes / 1e9:.1f} GB of free memory"] = int(host.free_bytes // size)
        for device in {name for n in needs for name in n.shares}:
            share = max(n.shares.get(device, 0.0) for n in needs)
            bounds[f"device {device}"] = int(1 / share + 1e-9) if host.gpus else 0
        tightest = min(bounds, key=lambda name: bounds[name])
        bound = bound or tightest + (f" of {host.name}" if host.name else "")
        slots += [
            (i, rank, host.name, host.cores[i * cores : (i + 1) * cores])
            for i in range(bounds[tightest])
        ]
    if not slots:
        raise SpecError(
            f"not even one run fits: {bound}, but a run needs {cores} cores and "
            f"{size / 1e9:.2f} GB; lower algorithm.replay.capacity or limits.max_lanes, or use "
            "another machine"
        )
    if len(slots) > runs:
        bound = "the runs"
    return tuple((host, held) for _, _, host, held in sorted(slots)[:runs]), bound


def compare_packings(population: Population, hosts: Sequence[RunHost]) -> list[Packing]:
    """Compute the packings of a population, the one that ends first at the front.

    Of equal packings, the packing with fewer cores per run comes first.

    Raises:
        InfeasibleError: no plan meets the limits of a setting.
        SpecError: not even one run fits.
    """
    slowdowns = calibrated_slowdowns()
    total = max(len(host.cores) for host in hosts)
    packings: list[Packing] = []
    infeasible: InfeasibleError | None = None
    max_cores = max(s.system.limits.max_lanes or total for s in population.settings)
    for cores in sorted({total // n for n in range(1, total + 1)}):
        if packings and cores > max_cores and packings[-1].cores >= max_cores:
            break  # the limits allow no more cores for a run
        try:
            packing = pack(population, Planner(cores), slowdowns, hosts)
        except InfeasibleError as error:
            infeasible = infeasible or error
            continue
        if packings and packing.needs == packings[-1].needs:
            break  # more cores for a run change nothing
        packings.append(packing)
    if not packings:
        assert infeasible is not None
        raise infeasible
    return sorted(packings, key=lambda p: p.seconds)


def pack(
    population: Population, planner: Planner, slowdowns: Shares, hosts: Sequence[RunHost]
) -> Packing:
    """Pack the runs of a population with the plans of this planner.

    Raises:
        InfeasibleError: no plan meets the limits of a setting.
        SpecError: a plan does not compile, or not even one run fits.
    """
    made = []
    for s in population.settings:
        plan = planner.plan(s.system)
        try:
            made.append(compile_plan(s.system, plan, check=True))
        except SpecError as error:
            raise SpecError(*(f"{s.name}: {line}" for line in error.problems)) from None
    needs = [request_resources(c, slowdowns) for c in made]
    need_of = {s.name: n for s, n in zip(population.settings, needs, strict=True)}
    runs = sort_runs(population, need_of)
    slots, bound = allocate_slots(needs, len(runs), hosts)

    def seconds(stage: RunStage) -> float:
        need = need_of[stage.setting]
        return need.seconds * (1 + (need.slowdown or 0.0) * (len(slots) > 1))

    executor = VirtualExecutor(len(slots), seconds)
    drive(GridScheduler(runs), executor, Journal())
    names, cores = zip(*slots, strict=True)
    return Packing(
        cores=planner.cores,
        slots=cores,
        hosts=names,
        plans=tuple(c.plan for c in made),
        needs=tuple(needs),
        seconds=executor.now_s,
        bound=bound,
        timeline=tuple((s.run, slot, begin, end) for s, slot, begin, end in executor.timeline),
    )


def sort_runs(population: Population, needs: Mapping[str, ResourceRequest]) -> list[RunStage]:
    """Sort all runs, the longest first, which packs best; equal ones by seed, then by setting."""
    runs = [run for of_seed in zip(*population.runs(), strict=True) for run in of_seed]
    return sorted(runs, key=lambda run: -needs[run.setting].seconds)


def describe_packing(
    chosen: Packing, others: Sequence[Packing], runs: int, hosts: Sequence[RunHost]
) -> str:
    """Describe the chosen packing and its prediction in one line."""
    slowdowns = [n.slowdown for n in chosen.needs if n.slowdown is not None]
    note = (
        f"each {100 * max(slowdowns):.0f} % slower because of the other runs"
        if slowdowns
        else "without the slow-down between runs, which is not calibrated"
    )
    at_once, cores = len(chosen.slots), max(n.cores for n in chosen.needs)
    total = str(sum(len(host.cores) for host in hosts))
    where = f"{total} cores" if len(hosts) == 1 else f"{total} cores of {len(hosts)} nodes"
    text = (
        f"{runs} {'run' if runs == 1 else 'runs'}, {at_once} at once on {cores} of "
        f"{where} each: {duration(chosen.seconds)} of training predicted"
    )
    if at_once > 1:
        text += f" ({note})"
    for p in others:
        text += f"; {len(p.slots)} at once with up to {p.cores} cores: {duration(p.seconds)}"
    return text


def duration(seconds: float) -> str:
    """Format a duration: `8.4 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
