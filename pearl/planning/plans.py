"""`Plan`: the place and order of every task, with value and proof; JSON and validation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.formats import check_format, latest
from pearl.formats import pearl_version as pearl_version
from pearl.graph.liveness import StoredArray
from pearl.json_files import read_object
from pearl.notebook import HasPage
from pearl.planning.bands import Bands, Regret
from pearl.planning.certificate_files import inside, read_beside, save_beside
from pearl.planning.json_records import build, list_of
from pearl.planning.schedule import FiringTimes, Timetable
from pearl.task_names import use_present_names
from pearl_devices.validation import check_type

if TYPE_CHECKING:
    from pearl.planning.problem import Problem

SCHEMA = latest("plan")


@dataclass(frozen=True)
class Entry:
    """One firing in a lane's order.

    task: name of the task.
    offset: iterations that the firing runs ahead of the first entry.
    replica: number of the copy of a split task, from 0.
    """

    task: str
    offset: int = 0
    replica: int = 0


@dataclass(frozen=True)
class Lane:
    """A serial executor: units of a device, or a link.

    lane: name of the lane.
    device: name of the device, or of the link.
    width: units of the device; 0 for a link.
    width_unit: unit of `width`, such as cores.
    order: one entry per firing; the n-th entry of a task or replica is its firing n.
    load: share of the period that the lane is busy, 0 to 1.
    """

    lane: str
    device: str
    width: int
    width_unit: str
    order: tuple[Entry, ...]
    load: float


@dataclass(frozen=True)
class Placement:
    """Device, lane and mode of one task, or of one replica of a split task.

    task, device, lane: names.
    width, width_unit: units of the device that a firing takes.
    variant: implementation of the kernel.
    firings: firings per iteration.
    seconds, occupancy_s: latency and lane time of a firing; for a fused call the task's share
        (`CostTable.shares`), or all of it with its first task if no shares are known.
    low_s, high_s: 90 % band of `seconds`.
    share_of_period: time of all firings over the period.
    rung: kind of evidence behind the estimate.
    bound_by: the resource that limits the estimate.
    fused_with: the other tasks of a fused call.
    replicas: copies of the task; 1: the task is whole.
    shares: environments of each replica; empty for a whole task.
    block: gradient steps of one firing.
    replica: number of this replica, from 0.
    """

    task: str
    device: str
    lane: str
    width: int
    width_unit: str
    variant: str
    firings: int
    seconds: float
    occupancy_s: float
    low_s: float
    high_s: float
    share_of_period: float
    rung: str
    bound_by: str
    fused_with: tuple[str, ...] = ()
    replicas: int = 1
    shares: tuple[int, ...] = ()
    block: int = 1
    replica: int = 0


@dataclass(frozen=True)
class Channel:
    """An edge of the graph in a plan, one for each pair of replicas that it joins.

    src, dst: names of the tasks.
    production, consumption: tokens per firing.
    tokens, tokens_seq: initial tokens, with and without slack.
    slack: relaxation, in firings of the rarer side.
    capacity: tokens that the buffer holds; None for an edge without data.
    bytes: bytes per firing of src.
    link: the link of the transfer; None on one device.
    src_replica, dst_replica: numbers of the replicas, from 0.
    reach: tokens beyond its own that a firing of dst reads; None: all of the rollout.
    """

    src: str
    dst: str
    production: int
    consumption: int
    tokens: int
    tokens_seq: int
    slack: int
    capacity: int | None
    bytes: float
    link: str | None
    src_replica: int = 0
    dst_replica: int = 0
    reach: int | None = 0


@dataclass(frozen=True)
class EvaluationPlacement:
    """The evaluations during a run: a task outside the loop, which fires once in many iterations.

    apart: whether they run in a separate process; else the lanes wait for them at pauses.
    device, variant: the place, and the implementation of the kernel.
    every: iterations between evaluations.
    episodes: of each evaluation.
    seconds: of one evaluation if every episode reaches its step limit.
    low_s, high_s: 90 % band of `seconds`.
    share: `seconds` over the time of the loop between evaluations.
    pays_from: evaluations of a run from which a separate lane takes less time than it saves; a run
        with fewer has them at pauses.
    rung: kind of evidence behind the estimate.
    """

    apart: bool
    device: str
    variant: str
    every: int
    episodes: int
    seconds: float
    low_s: float
    high_s: float
    share: float
    pays_from: int
    rung: str


@dataclass(frozen=True)
class Bottleneck:
    """The bound of the period: a lane, a link or a critical cycle, with its tasks.

    kind: lane, link or cycle.
    name: of the lane or link, or a description of the cycle.
    tasks: the tasks that take the time.
    """

    kind: Literal["lane", "link", "cycle"]
    name: str
    tasks: tuple[str, ...]


BOUND_SOURCES = {
    "": "nothing is proved",
    "cycles": "cycles in the quickest modes",
    "work": "the work that lanes share",
    "links": "the messages that must cross a link",
    "modes": "the energy of the most frugal modes and of idling",
    "loads": "fractional loads of lanes and links",
    "count": "the largest tasks, which must find room",
    "chains": "the chains and rings of tasks",
    "relaxation": "fractional assignments",
    "path": "the longest path of the graph and the work that lanes share",
    "search": "all assignments that the search left open",
}
"""Source of a plan's bound → what the bound counts, for reports."""


@dataclass(frozen=True)
class Plan(HasPage):
    """A solved placement with value, bound, status, method and seed.

    `pearl/schemas/plan.json` lists every field. Times in seconds, energies in joules, power in
    watts.

    Attributes:
        bound_from: source of the bound, one of `BOUND_SOURCES`; empty if nothing is proven.
        note: rejected alternatives, such as a second lane, and the reasons, in words.
        evaluation: where the evaluations of a run are played; None: at pauses, not estimated.
        bands: of its rates, power and energy; None for a plan from a file without them.
        regret: of a plan chosen by regret (objective robust); else None.
        rollout: the stored part of its rollout; empty if there is none.
        simulated: the platform's devices without hardware; texts mark each of them as simulated.
        certified: what its certificate proves, by `pearl.verify`: that the plan is optimal, a bound
            above 0 (gap), or nothing. Plans are compared without it: making one may end early.
        certified_bound: the value that no plan exceeds by its certificate; None without one.
        certificate: the proof, and in a file the problem that it is of; None if there is none.
        problem: the problem solved, for `pearl.explain`; None for a plan from a file. Neither
            written nor compared.
        timetable: start and end times of its firings; None for a plan from a file. Neither written
            nor compared.
    """

    pearl_version: str
    spec_sha256: str
    host: str
    objective: str
    status: Literal["optimal", "feasible", "time_limit"]
    method: str
    seed: int
    solve_s: float
    value: float
    value_unit: str
    bound_value: float
    gap: float
    period_s: float
    bound_s: float
    pace_s: float | None
    simulated_period_s: float
    rates: Mapping[str, float]
    energy_per_iteration_j: float
    power_w: float
    env_steps_per_j: float | None
    bottleneck: Bottleneck
    lanes: tuple[Lane, ...]
    tasks: tuple[Placement, ...]
    edges: tuple[Channel, ...]
    schema: int = field(default=SCHEMA)
    bound_from: str = ""
    note: str = ""
    evaluation: EvaluationPlacement | None = None
    bands: Bands | None = None
    regret: Regret | None = None
    simulated: tuple[str, ...] = ()
    rollout: tuple[StoredArray, ...] = ()
    certified: Literal["optimal", "gap", ""] = field(default="", compare=False)
    certified_bound: float | None = field(default=None, compare=False)
    certificate: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    problem: Problem | None = field(default=None, compare=False, repr=False)
    timetable: Timetable | None = field(default=None, compare=False, repr=False)

    def task(self, name: str) -> Placement:
        """Return the placement of a task.

        Raises:
            KeyError: the plan has no such task; lists its tasks.
        """
        for placement in self.tasks:
            if placement.task == name:
                return placement
        raise KeyError(f"plan has no task {name!r}; it has {[t.task for t in self.tasks]}")

    def to_json(self) -> dict[str, Any]:
        """Return a plain object as `pearl/schemas/plan.json` describes it; no NaN or infinity."""
        bare = replace(self, problem=None, timetable=None, certificate=None)
        result: dict[str, Any] = plain(asdict(bare))
        del result["problem"], result["timetable"]
        return result | {"certificate": inside(self)}

    def save(self, path: str | Path) -> None:
        """Write the plan as a page for the suffix .html, else as JSON, with its certificate beside
        it if that is large."""
        super().save(path)
        save_beside(self, path)

    PAGE: ClassVar[str] = "pearl.report.report:page_of"

    def schedule(self, iterations: int = 1) -> tuple[FiringTimes, ...]:
        """Return start and end of every firing and transfer of the first iterations, by start.

        For makespan, times count from 0. Else the schedule is periodic: the firing of each further
        iteration is `period_s` later, so work for the next iteration may end after this iteration.

        Raises:
            SpecError: the plan comes from a file, or `iterations` is below 1.
        """
        firings = self._times().firings(iterations)
        return tuple(sorted(firings, key=lambda f: (f.start_s, f.lane)))

    def gantt(self, path: str | Path | None = None, *, iterations: int = 1) -> str:
        """Return an SVG image of the schedule: a row for each lane and link, a box for each firing.

        Args:
            path: a file to which the image is also written. Raises as `schedule`.
        """
        image = self._times().gantt(iterations)
        if path is not None:
            write_atomically(path, image.encode())
        return image

    def trace(self, path: str | Path | None = None, *, iterations: int = 3) -> dict[str, Any]:
        """Return the schedule as Chrome trace events, for ui.perfetto.dev: a process for each
        device, a thread for each lane, a flow for each message between lanes.

        Args:
            path: a JSON file to which the events are also written. Raises as `schedule`.
        """
        events = self._times().trace(iterations)
        if path is not None:
            write_atomically(path, json.dumps(events).encode())
        return events

    def _times(self) -> Timetable:
        if self.timetable is None:
            raise SpecError(
                "this plan comes from a file, which holds no graph and costs, so the times of its "
                "firings are not known; solve its problem again with known= this plan"
            )
        return self.timetable


def plain(value: Any) -> Any:
    """Return `value` with tuples as lists, numpy numbers as Python's, NaN and infinities as
    None."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def load_plan(source: str | Path | Mapping[str, Any], where: str = "plan") -> Plan:
    """Read a plan from its JSON file or object. Unknown keys are ignored, and keys that plans got
    later have defaults.

    where: the place of an object, for errors.

    Raises:
        SpecError: a key is missing or has a value of another type, or the plan is of a format that
            this version does not read; names file and key.
    """
    if problems := check_type("plan", source, str | Path | Mapping, "a Plan or its file"):
        raise SpecError(*problems)
    if not isinstance(source, Mapping):
        where = str(source)
        source = read_object(Path(source), "`pearl plan --json FILE` writes a plan")
    check_format("plan", source, where)
    orders = {"order": lambda entries, place: list_of(Entry, entries, place)}
    nested: dict[str, Callable[[Any], Any]] = {
        "bound_value": lambda v: 0.0 if v is None else v,
        "bottleneck": lambda v: build(Bottleneck, v, f"{where}: bottleneck"),
        "lanes": lambda v: list_of(Lane, v, f"{where}: lanes", orders),
        "tasks": lambda v: list_of(Placement, v, f"{where}: tasks"),
        "edges": lambda v: list_of(Channel, v, f"{where}: edges"),
        "rollout": lambda v: list_of(StoredArray, v, f"{where}: rollout"),
        "evaluation": lambda v: (
            v if v is None else build(EvaluationPlacement, v, f"{where}: evaluation")
        ),
        "bands": lambda v: v if v is None else build(Bands, v, f"{where}: bands"),
        "regret": lambda v: v if v is None else build(Regret, v, f"{where}: regret"),
    }
    values = {k: nested[k](v) if k in nested else v for k, v in source.items() if k != "problem"}
    plan: Plan = build(Plan, values, where)
    if not plan.tasks or not plan.lanes:
        raise SpecError(
            f"{where}: tasks or lanes is an empty list; a plan has at least one of each"
        )
    if plan.certified and plan.certificate is None and where != "plan":
        plan = replace(plan, certificate=read_beside(where))
    unproven = "bound_value" in source and source["bound_value"] is None
    return replace(plan, bound_value=math.inf) if unproven else plan


def rename_former_tasks(plan: Plan, tasks: Collection[str]) -> Plan:
    """Return a plan with the present names of tasks, if it names others than the tasks of its
    graph. A certificate is of former names, so the plan is then without it."""
    if {t.task for t in plan.tasks} <= set(tasks):
        return plan
    source = plan.to_json()
    parts = {key: source[key] for key in ("tasks", "lanes", "edges", "bottleneck")}
    now = use_present_names(parts)
    if now == parts:
        return plan
    bare = {"certified": "", "certified_bound": None, "certificate": None}
    return replace(load_plan({**source, **now, **bare}), problem=plan.problem)


CLOSED: Literal["closed_form"] = "closed_form"
"""The estimate level of a formula for a design, whose error is unknown."""


def closed_forms(*plans: Plan) -> list[str]:
    """Return the devices whose times in these plans come from closed forms."""
    return list(dict.fromkeys(t.device for p in plans for t in p.tasks if t.rung == CLOSED))
