"""How many runs beside each other, each on how many cores: whichever ends the set first."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pearl.errors import InfeasibleError, SpecError
from pearl.formatting import count
from pearl.graph.task_graph import TaskGraph
from pearl.planner import plan_cache
from pearl.planner.planner import build_problem, plan_graph, skipping_timing_if_busy
from pearl.planning.plans import Plan
from pearl.planning.problem import Problem
from pearl.population.driver import Journal, VirtualExecutor, drive
from pearl.population.members import Population
from pearl.population.schedulers import GridScheduler, RunStage
from pearl.spec.system import System
from pearl.spec.user_code import build_graph
from pearl.training import memory
from pearl.training.compiled import CompiledPlan, compile_plan
from pearl_devices.discover import free_memory
from pearl_estimators.host import calibration_file
from pearl_estimators.host.calibration import CalibrationError, OutdatedError
from pearl_estimators.host.interference import Shares, named

PROCESS_BYTES = 400e6
"""Memory of a run beside its arrays (assumed; 230 MB was seen with native kernels)."""


@dataclass(frozen=True)
class RunHost:
    """Where runs can be: this machine, or a node of a cluster.

    host: name of the node; empty of this machine. cores: of the CPU that runs may have.
    free_bytes: of main memory; None: not known. gpus: whether there may be others beside the CPU.
    """

    host: str
    cores: tuple[int, ...]
    free_bytes: float | None
    gpus: bool = True


def local_host() -> tuple[RunHost, ...]:
    """This machine."""
    free, swap = free_memory()
    return (RunHost("", usable_cores(), None if free is None else free + swap),)


@dataclass(frozen=True)
class ResourceRequest:
    """What a run of a plan takes of a place.

    cores: of the CPU. shares: device → part of its width, 0 to 1. bytes: of main memory.
    seconds: of its training, by the plan, alone.
    slower: share of them that it takes longer beside a run like it; None: not known.
    """

    cores: int
    shares: Mapping[str, float]
    bytes: float
    seconds: float
    slower: float | None


@dataclass(frozen=True)
class Packing:
    """A way to run a population.

    cores: of a run at most. slots: the cores of each slot. hosts: the place of each, by name.
    plans: of every setting. needs: of every setting.
    seconds: predicted, of the training of all runs. why: what holds the slots at their number.
    timeline: (run, slot, begin, end) of a plain sweep, predicted, seconds.
    """

    cores: int
    slots: tuple[tuple[int, ...], ...]
    hosts: tuple[str, ...]
    plans: tuple[Plan, ...]
    needs: tuple[ResourceRequest, ...]
    seconds: float
    why: str
    timeline: tuple[tuple[str, int, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """The packing without its plans."""
        return {
            "cores_per_run": self.cores,
            "runs_at_once": len(self.slots),
            "predicted_s": self.seconds,
            "slots": [list(slot) for slot in self.slots],
            "hosts": list(self.hosts),
            "bounded_by": self.why,
            "timeline": [
                {"run": run, "slot": slot, "begin_s": begin_s, "end_s": end_s}
                for run, slot, begin_s, end_s in self.timeline
            ],
        }


class Planner:
    """The plans of settings for runs of so many cores. Settings with one graph have one plan.

    cores: of a run at most.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._made: list[tuple[TaskGraph, System, Plan]] = []

    def plan(self, system: System) -> Plan:
        """The plan of a system. Raises InfeasibleError where none meets its limits."""
        graph = build_graph(system)
        for before, other, plan in self._made:
            if before == graph and _alike(other, system):
                return plan
        most = system.limits.max_lanes
        held = min(self.cores, most or self.cores)
        bounded = replace(
            system,
            limits=replace(system.limits, max_lanes=held),
            train=replace(system.train, evaluate_in="pauses"),  # the cores have other runs
        )
        problem = build_problem(bounded)
        known = _remembered(system, problem)
        if known is None:
            with skipping_timing_if_busy(bounded):
                known = plan_graph(problem)
                plan_cache.cache_plan(problem, known)
        self.add_plan(system, known)
        return known

    def add_plan(self, system: System, plan: Plan) -> None:
        """Take a plan that was made before."""
        self._made.append((build_graph(system), system, plan))


def _remembered(system: System, problem: Problem) -> Plan | None:
    """The plan made before for this problem, where it still can be followed. problem: of the system
    with the cores of a run as its limit."""
    plan = plan_cache.load_cached_plan(problem)
    try:
        return None if plan is None else compile_plan(system, plan, problem.graph, check=True).plan
    except SpecError:
        return None  # then it is made anew


def _alike(one: System, other: System) -> bool:
    return (one.platform, one.objective, one.limits) == (
        other.platform,
        other.objective,
        other.limits,
    )


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def need(made: CompiledPlan, beside: Shares) -> ResourceRequest:
    """What a run takes. beside: as the calibration has it."""
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
        slower=_slower(made, beside),
    )


def _slower(made: CompiledPlan, beside: Shares) -> float | None:
    """The share of its time that a run takes longer beside one like it, by the pairs of calls that
    the calibration has measured; None where it has none of them."""
    load: dict[str, float] = {}
    for job in made.calls:
        placed = [made.protocol.plan.task(task) for task in job.tasks]
        share = sum(p.seconds * p.firings for p in placed) / made.plan.period_s
        name = named(job.kernel, job.variant)
        load[name] = load.get(name, 0.0) + share
    pairs = [(a, b) for a in load for b in load if b in beside.get(a, {})]
    if not pairs:
        return None
    return math.fsum(load[a] * load[b] * beside[a][b] for a, b in pairs)


def measured_beside() -> Shares:
    """How calls on two cores slow each other, as calibrated on this host; empty where unknown."""
    try:
        known = calibration_file.stored()
    except (CalibrationError, OutdatedError):
        return {}
    return known.beside if known else {}


def slots(
    needs: Sequence[ResourceRequest], runs: int, places: Sequence[RunHost]
) -> tuple[tuple[tuple[str, tuple[int, ...]], ...], str]:
    """The place and the cores of each slot, enough for any of the runs, and what bounds their
    number. They go round the places.

    Raises:
        SpecError: not one run fits.
    """
    cores, size = max(n.cores for n in needs), max(n.bytes for n in needs)
    found: list[tuple[int, int, str, tuple[int, ...]]] = []
    why = ""
    for rank, place in enumerate(places):
        bounds = {f"{count(len(place.cores))} cores": len(place.cores) // cores}
        if place.free_bytes is not None:
            bounds[f"{place.free_bytes / 1e9:.1f} GB of free memory"] = int(
                place.free_bytes // size
            )
        for device in {name for n in needs for name in n.shares}:
            most = max(n.shares.get(device, 0.0) for n in needs)
            bounds[f"device {device}"] = int(1 / most + 1e-9) if place.gpus else 0
        least = min(bounds, key=lambda name: bounds[name])
        why = why or least + (f" of {place.host}" if place.host else "")
        found += [
            (i, rank, place.host, place.cores[i * cores : (i + 1) * cores])
            for i in range(bounds[least])
        ]
    if not found:
        raise SpecError(
            f"not one run fits: {why} for a run that takes {cores} cores and {size / 1e9:.2f} GB; "
            "lower algorithm.replay.capacity or limits.max_lanes, or use another machine"
        )
    if len(found) > runs:
        why = "the runs"
    return tuple((host, held) for _, _, host, held in sorted(found)[:runs]), why


def packings(asked: Population, places: Sequence[RunHost]) -> list[Packing]:
    """The ways to run a population, the one that ends first at the front; of equals the one of
    fewer cores a run.

    Raises:
        InfeasibleError: no plan meets the limits of a setting.
        SpecError: not one run fits.
    """
    beside = measured_beside()
    total = max(len(place.cores) for place in places)
    found: list[Packing] = []
    failed: InfeasibleError | None = None
    most = max(s.system.limits.max_lanes or total for s in asked.settings)
    for cores in sorted({total // n for n in range(1, total + 1)}):
        if found and cores > most and found[-1].cores >= most:
            break  # the limits allow a run no more
        try:
            made = choose_packing(asked, Planner(cores), beside, places)
        except InfeasibleError as error:
            failed = failed or error
            continue
        if found and made.needs == found[-1].needs:
            break  # more cores for a run change nothing
        found.append(made)
    if not found:
        assert failed is not None
        raise failed
    return sorted(found, key=lambda p: p.seconds)


def choose_packing(
    asked: Population, planner: Planner, beside: Shares, places: Sequence[RunHost]
) -> Packing:
    """The way to run a population with plans of this planner."""
    made = []
    for s in asked.settings:
        plan = planner.plan(s.system)
        try:
            made.append(compile_plan(s.system, plan, check=True))
        except SpecError as error:
            raise SpecError(*(f"{s.name}: {line}" for line in error.problems)) from None
    needs = [need(c, beside) for c in made]
    of = {s.name: n for s, n in zip(asked.settings, needs, strict=True)}
    runs = in_order(asked, of)
    held, why = slots(needs, len(runs), places)

    def seconds(stage: RunStage) -> float:
        n = of[stage.setting]
        return n.seconds * (1 + (n.slower or 0.0) * (len(held) > 1))

    clock = VirtualExecutor(len(held), seconds)
    drive(GridScheduler(runs), clock, Journal())
    plans = tuple(c.plan for c in made)
    line = tuple((s.run, slot, begin, end) for s, slot, begin, end in clock.passed)
    hosts, shares = zip(*held, strict=True)
    return Packing(planner.cores, shares, hosts, plans, tuple(needs), clock.now_s, why, line)


def in_order(asked: Population, needs: Mapping[str, ResourceRequest]) -> list[RunStage]:
    """All runs, the longest first, which packs them best; of equals by seed, then by setting."""
    runs = [run for together in zip(*asked.runs(), strict=True) for run in together]
    return sorted(runs, key=lambda run: -needs[run.setting].seconds)


def sentence(
    chosen: Packing, others: Sequence[Packing], runs: int, places: Sequence[RunHost]
) -> str:
    """The choice and its prediction in one line."""
    known = [n.slower for n in chosen.needs if n.slower is not None]
    beside = (
        f"each {100 * max(known):.0f} % slower beside the others"
        if known
        else "how they slow each other is not known, and left out"
    )
    at_once, cores = len(chosen.slots), max(n.cores for n in chosen.needs)
    total = str(sum(len(place.cores) for place in places))
    where = f"{total} cores" if len(places) == 1 else f"{total} cores of {len(places)} nodes"
    text = (
        f"{runs} {'run' if runs == 1 else 'runs'}, {at_once} at once on {cores} of "
        f"{where} each: {duration(chosen.seconds)} of training predicted"
    )
    if at_once > 1:
        text += f" ({beside})"
    for p in others:
        text += f"; {len(p.slots)} at once with up to {p.cores} cores: {duration(p.seconds)}"
    return text


def duration(seconds: float) -> str:
    """`8.4 s`, `12 min`, `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
