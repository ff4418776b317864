"""`Run`: the result of training next to the plan's prediction; its JSON and its folder's files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pearl import run_folder
from pearl.errors import SpecError
from pearl.files import LOCK, read_bounded
from pearl.formats import check_format, latest
from pearl.json_files import MOST_BYTES, read_object
from pearl.notebook import HasPage
from pearl.planning.json_records import build, fits, list_of
from pearl.planning.lane_times import CallTime, LaneTime, MeasuredCall
from pearl.planning.plans import Plan, load_plan, plain
from pearl_devices import Device, Link, Platform, platform_json
from pearl_devices.validation import quote

Status = Literal["done", "stopped", "interrupted", "failed"]
STATUSES = ("done", "stopped", "interrupted", "failed")
ENERGY_SOURCE = re.compile(r"\w+(\+\w+)*")
"""Names of counters or `modelled`, joined with + if devices differ."""


@dataclass(frozen=True)
class TaskTiming:
    """One task's time per firing, predicted and measured (median), over `firings` firings.

    task: name, or the members of a fused call joined with +.
    predicted_s, measured_s: seconds of a firing; measured_s is None without a timing.
    firings: number of timed firings.
    profiled: measured in a separate stretch, as necessary for members of a fused mode.
    flops, bytes: arithmetic of a firing, and bytes that it reads and writes; 0 for a fused call.
    """

    task: str
    predicted_s: float
    measured_s: float | None
    firings: int
    profiled: bool = False
    flops: float = 0.0
    bytes: float = 0.0


TOLERANCE = 0.15
"""A period or a task is off if it takes this much more, or less, than predicted."""


@dataclass(frozen=True)
class TaskDrift:
    """Seconds per firing of one call, predicted and measured; off: measured / predicted - 1.

    task: name, or the members of a fused call joined with +.
    predicted_s, measured_s: seconds of a firing.
    """

    task: str
    predicted_s: float
    measured_s: float
    off: float


@dataclass(frozen=True)
class Drift:
    """Deviation of a run from its plan.

    predicted_s: seconds of an iteration by the plan.
    measured_s: seconds of an iteration in the steady part, with waits, without evaluation and
        checkpoints; None if the run had no steady part.
    off: measured / predicted - 1.
    tasks: every call that was timed.
    decisions: decisions of re-planning, with reasons.
    apart: time of two cores to exchange bytes over the time at calibration, for a plan on two cores
        that is off; None if the times are alike (`exchange.ALIKE`).
    waited: share of measured_s, 0 to 1, in which the bounding lane was ready and had no core; None
        if the system does not report it, or if the plan has more threads than cores.
    learned: a sentence on the run, or on each of several lanes: what the calibration learned from
        it, or why nothing; empty for a plan from a file or a run on a virtual clock.
    """

    predicted_s: float
    measured_s: float | None
    off: float | None
    tasks: tuple[TaskDrift, ...]
    decisions: tuple[str, ...] = ()
    apart: float | None = None
    waited: float | None = None
    learned: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimeToSolution:
    """Time of a run to its goal, in wall seconds since the beginning of `compile`, without the
    pauses between its sessions.

    threshold: return from which gymnasium counts the environment as solved; None if it gives none.
    threshold_s, threshold_env_steps: time until an evaluation during training first had at least
        this mean, and the env steps of its policy; None if none had.
    best_mean, best_s, best_env_steps: of the first evaluation with the best mean; None before one.
    end_s: until the end of the run.
    plan_s, bind_s, evaluation_s, checkpoint_s: parts of end_s, in seconds, without training:
        planning with its calibration; compiling and binding kernels; evaluations, the final one
        included; checkpoints.
    evaluation_cpu_s: CPU seconds of evaluations.
    """

    threshold: float | None
    threshold_s: float | None
    threshold_env_steps: int | None
    best_mean: float | None
    best_s: float | None
    best_env_steps: int | None
    end_s: float
    plan_s: float
    bind_s: float
    evaluation_s: float
    evaluation_cpu_s: float
    checkpoint_s: float


@dataclass(frozen=True)
class StoppedBy:
    """The callback that ended a run, by its class, and the env steps done.

    by: class name of the callback.
    env_steps: env steps done at that time.
    """

    by: str
    env_steps: int


@dataclass(frozen=True)
class Run(HasPage):
    """The outcome of one training run; `pearl/schemas/run.json` lists the keys, SI units.

    Attributes:
        wall_s: seconds of the whole run.
        cpu_s: CPU-seconds of the whole run, child processes included.
        steady: {wall_s, cpu_s, env_steps, updates; waited_s, stolen_s if known} of the steady
            stretch. It begins with the first iteration after the start of learning plus a tenth of
            the steps, and ends with the run. env_steps_per_s, env_steps_per_cpu_s and updates_per_s
            are taken from it; they are None if the run ended before it.
        returns: {mean_last_20, episodes, eval_mean, eval_returns, eval_cut (number of cut
            episodes)} of the best policy in the final evaluation; {last_eval_mean,
            last_eval_returns, last_eval_cut} of the last policy in the same episodes; best_is_last
            (then evaluated once; None: not evaluated).
        energy_j: of the platform's devices over wall_s.
        energy_source: nvml or rapl (measured), modelled, several joined with + if devices differ,
            or None if energy_j is None.
        message: the reason of a failure.
        restarts: of environments and of lanes; `events` names them and other faults.
        lost_transitions: env steps that restarts wasted.
        simulated: times come from a model's clock, not from this machine's.
        lags: for a plan with several lanes, observed lags in the timed iterations (policy_lag:
            syncs, at act; priority_staleness: draws whose priorities were not yet
            written, at a draw) → lag → how often.
        traffic: for the lanes of each other host, the traffic: {host, tasks, carrier, messages_to,
            payload_bytes_to, state_bytes_to, others_to, and the same with _from}: messages with
            firings and the bytes of their arrays, bytes at starts and pauses, and control messages.
        drift: its deviation from the plan; None for a simulated run, which has no other times.
        stopped: the callback that ended it (status `stopped`), or None.
        solution: its times; None for a simulated run.
        lanes: the times of each lane, since the run began or was last resumed; empty if simulated.
        calls: every call of a few steady iterations, by start; empty if the run ended before them.
        platform: the devices and links of the run; None for a run that was not trained here.
        out: the run folder, if there is one; not part of the JSON.
    """

    status: Status
    env_steps: int
    updates: int
    wall_s: float
    cpu_s: float
    steady: Mapping[str, float]
    env_steps_per_s: float | None
    env_steps_per_cpu_s: float | None
    updates_per_s: float | None
    predicted_env_steps_per_s: float | None
    returns: Mapping[str, Any]
    peak_rss_bytes: int
    energy_j: float | None
    energy_source: str | None
    simulated: bool
    tasks: tuple[TaskTiming, ...]
    plan: Plan
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    traffic: tuple[Mapping[str, Any], ...] = ()
    message: str | None = None
    restarts: int = 0
    lost_transitions: int = 0
    events: tuple[str, ...] = ()
    drift: Drift | None = None
    stopped: StoppedBy | None = None
    solution: TimeToSolution | None = None
    lanes: tuple[LaneTime, ...] = ()
    calls: tuple[MeasuredCall, ...] = ()
    platform: Platform | None = None
    out: str | None = None
    schema: int = field(default=latest("run"))

    def __post_init__(self) -> None:
        object.__setattr__(self, "steady", MappingProxyType(dict(self.steady)))
        object.__setattr__(self, "returns", MappingProxyType(dict(self.returns)))
        problems = []
        if self.status not in STATUSES:
            problems.append(f"run: status is {self.status!r}; it is one of {list(STATUSES)}")
        source = self.energy_source
        if source is not None and not ENERGY_SOURCE.fullmatch(source):
            problems.append(
                f"run: energy_source is {source!r}; it is modelled, the name of a counter such as "
                "nvml or rapl, or several joined with +"
            )
        if (self.energy_j is None) != (self.energy_source is None):
            problems.append(
                f"run: energy_j is {self.energy_j} but energy_source is {self.energy_source}; "
                "set both or none"
            )
        if problems:
            raise SpecError(*problems)

    def __hash__(self) -> int:
        return hash((self.status, self.env_steps, self.wall_s, self.out))

    def to_json(self) -> dict[str, Any]:
        """Return a plain object as `pearl/schemas/run.json` describes it, without NaN, infinity and
        `out`."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "out"}
        values["tasks"] = [vars(t) for t in self.tasks]
        values["lanes"] = [asdict(k) for k in self.lanes]
        values["calls"] = [vars(c) for c in self.calls]
        values["plan"] = self.plan.to_json()
        values["drift"] = None if self.drift is None else asdict(self.drift)
        for name in ("stopped", "solution"):
            part = getattr(self, name)
            values[name] = None if part is None else asdict(part)
        values["platform"] = None if self.platform is None else platform_json.to_json(self.platform)
        return plain(values)  # type: ignore[no-any-return]

    PAGE: ClassVar[str] = "pearl.report.report:page_of"


RETURNS = {
    "mean_last_20": "float | None",
    "episodes": "int | None",
    "eval_mean": "float | None",
    "eval_returns": "tuple[float, ...] | None",
    "last_eval_mean": "float | None",
    "best_is_last": "bool | None",
}
"""Key of a run's `returns` that a report needs → its type."""


def load_run(path: str | Path) -> Run:
    """Return the run stored in a run folder or a `run.json`.

    Unknown keys are ignored.

    Raises:
        SpecError: a key is missing or has a value of another type; the text names file and key.
    """
    file, in_folder = Path(path), False
    if file.is_dir():
        run_folder.find(file, "run.json")
        file, in_folder = file / "run.json", True
    where = str(file)
    source = read_object(file, "`pearl train` writes a run folder", follow=not in_folder)
    check_format("run", source, where)
    for key in ("steady", "returns", "plan"):
        if not isinstance(source.get(key), Mapping):
            raise SpecError(f"{where}: {key} is {quote(source.get(key))}; an object is needed")
    for key, value in source["returns"].items():
        if not fits(value, RETURNS.get(key, "")):
            raise SpecError(f"{where}: returns.{key} is {quote(value)}; a {RETURNS[key]} is needed")
    values = dict(source)
    values["tasks"] = list_of(TaskTiming, source.get("tasks"), f"{where}: tasks")
    values["plan"] = load_plan(source["plan"], f"{where}: plan")
    calls = {"calls": lambda value, place: list_of(CallTime, value, place)}
    values["lanes"] = list_of(LaneTime, source.get("lanes", ()), f"{where}: lanes", calls)
    values["calls"] = list_of(MeasuredCall, source.get("calls", ()), f"{where}: calls")
    if source.get("drift") is not None:
        drift = build(Drift, source["drift"], f"{where}: drift")
        if drift.waited is not None and not 0 <= drift.waited <= 1:
            raise SpecError(f"{where}: drift.waited is {drift.waited}; a share of 0 to 1 is needed")
        tasks = list_of(TaskDrift, source["drift"].get("tasks"), f"{where}: drift.tasks")
        values["drift"] = replace(drift, tasks=tasks)
    for name, kind in (("stopped", StoppedBy), ("solution", TimeToSolution)):
        if source.get(name) is not None:
            values[name] = build(kind, source[name], f"{where}: {name}")
    if source.get("platform") is not None:
        values["platform"] = _read_platform(source["platform"], f"{where}: platform")
    values["out"] = str(file.parent)
    run: Run = build(Run, values, where)
    return run


def _read_platform(value: Any, where: str) -> Platform:
    """Return a platform from the object that `platform_json.to_json` made."""
    parts = {
        "devices": lambda items, place: list_of(Device, items, place),
        "links": lambda items, place: list_of(Link, items, place),
    }
    try:
        platform: Platform = build(Platform, value, where, parts)
    except ValueError as error:
        raise SpecError(f"{where}: {error}") from None
    return platform


CHECKPOINT = "checkpoint.safetensors"
POLICIES = {"best": "policy_best.safetensors", "last": "policy_last.safetensors"}
SPEC_MARK = "# The spec of this run, as pearl read it.\n"
"""The first line of a run folder's `spec.yaml`."""

_MARKS: Mapping[str, tuple[str, ...]] = {
    "plan.json": ('"schema":', '"tasks":', '"period_s":'),
    "run.json": ('"schema":', '"steady":', '"plan":'),
    "metrics.csv": ("env_steps,updates,wall_s",),
    "spec.yaml": (SPEC_MARK,),
    "trace.json": ('"traceEvents":',),
    "report.html": ('<meta name="generator" content="PEARL">',),
}
"""File of a run folder → words that show that a run wrote it."""


def check_folder(folder: Path) -> None:
    """Check that a run in `folder` overwrites no foreign file. A folder with a checkpoint is always
    a run's.

    Raises:
        SpecError: the folder has a file that no run wrote, or a file that cannot be read, or the
            name of a file of a run is that of a link, a pipe, a device or a folder.
    """
    if not folder.is_dir():
        return
    problems: list[str] = []
    has_checkpoint = False
    for name in (CHECKPOINT, *POLICIES, LOCK, *_MARKS):
        try:
            found = run_folder.find(folder, name)
        except SpecError as error:
            problems += error.problems
            continue
        has_checkpoint |= found is not None and name == CHECKPOINT
        if found is None or has_checkpoint or name not in _MARKS:
            continue
        try:
            text = read_bounded(found, MOST_BYTES, follow=False).decode(errors="replace")
            ours = all(mark in text for mark in _MARKS[name])
        except OSError:
            ours = False
        if not ours:
            problems.append(
                f"{folder / name}: no run of pearl wrote this, and a run in {folder} would "
                "overwrite it; name another folder, or move it away"
            )
    if problems:
        raise SpecError(*problems)
