"""The command line. Every command calls one public function and prints or writes what it gives.

Exit status: 0 done; 1 infeasible or failed; 2 the spec or the arguments are wrong; 130 after
Ctrl-C. Heavy modules are imported inside the commands, so that `pearl --help` is quick.
"""

from __future__ import annotations

import errno
import functools
import json
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pearl.errors import InfeasibleError, SpecError
from pearl.seeds import SEEDS

if TYPE_CHECKING:
    from pearl.spec.system import System
    from pearl.training.policy import Policy

SCHEMA = 1
DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="pearl",
    help="Decides where each part of a deep reinforcement learning loop runs, and trains it so.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True)
class Result:
    """What a command found: text for people, the object for programs, the exit status."""

    text: str
    object: dict[str, Any]
    status: int = DONE


def command(function: Callable[..., Result]) -> Callable[..., None]:
    """Register `function` as the command of its name; the one place for output, errors and exit."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        target: str | None = options.get("json_file")
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _note
                result = _attempt(lambda: function(*args, **options))
            if target != "-":
                print(result.text, flush=True) if result.text else None
            _write_json(result.object, target)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever reads our output has had enough
                raise
            _error(f"{error.filename or 'output'}: {error.strerror or error}")
            raise typer.Exit(FAILED) from None
        raise typer.Exit(result.status)

    app.command(name=function.__name__.strip("_").replace("_", "-"))(run)
    return run


def _attempt(work: Callable[[], Result]) -> Result:
    from pearl_devices.base import EnvironmentFailed, UnsupportedError
    from pearl_estimators.host.calibration import CalibrationError

    try:
        return work()
    except SpecError as error:
        for problem in error.problems:
            _error(problem)
        problems = list(error.problems)
        return Result("", {"schema": SCHEMA, "status": "invalid", "problems": problems}, WRONG)
    except InfeasibleError as error:
        _error(str(error))
        found = {"status": "infeasible", "message": str(error), "conflict": list(error.conflict)}
        return Result("", {"schema": SCHEMA, **found}, FAILED)
    except (UnsupportedError, EnvironmentFailed, CalibrationError) as error:
        _error(str(error))
        failed = {"schema": SCHEMA, "status": "failed", "message": str(error)}
        return Result("", failed, FAILED)


def _note(message: Warning | str, *where: Any, **options: Any) -> None:
    """A warning as a line of its own, without the place in the code that it comes from."""
    print(f"note: {message}", file=sys.stderr, flush=True)


def _error(line: str) -> None:
    print(f"error: {line}", file=sys.stderr, flush=True)


def _write_json(value: dict[str, Any], target: str | None) -> None:
    if target is None:
        return
    from pearl.planning.plans import plain

    text = json.dumps(plain(value), indent=1, allow_nan=False) + "\n"
    if target == "-":
        print(text, end="", flush=True)
        return
    from pearl.files import write_atomically

    write_atomically(target, text.encode())


def _overrides(pairs: list[str] | None) -> dict[str, object]:
    from pearl.spec.reading import parse_set

    return dict(parse_set(pair) for pair in pairs or ())


def _load(spec: str, pairs: list[str] | None) -> System:
    from pearl.spec.reading import load

    return load(spec, set=_overrides(pairs))


def _warn_of_measuring(system: System) -> None:
    """A plan for this host's CPU times kernels that never were: say so before a silent while."""
    from pearl.planner.planner import graph_of, kernels
    from pearl_estimators.host import on_demand

    if not any(on_demand.calibrated_here(d) for d in system.platform.devices):
        return
    if missing := on_demand.lacking(kernels(graph_of(system))):
        what = f"timing kernels of this host once ({', '.join(missing)})"
        most_s = on_demand.limit_of(on_demand.SECONDS)
        print(
            f"{what}, about a minute, at most {most_s:.0f} s; Ctrl-C keeps what was timed",
            file=sys.stderr,
            flush=True,
        )


Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="The spec: a YAML file, or the name of a shipped one.")
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A folder left by `pearl train`.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the code that a run names which is not of your training."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the spec, as in limits.power=350 W."
    ),
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output."),
]


@command
def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path(
        "pearl.yaml"
    ),
    json_file: Json = None,
) -> Result:
    """Write a commented spec to start from."""
    from pearl.files import make_folders
    from pearl.spec.template import init_text

    make_folders(file)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(init_text())
    except FileExistsError:
        raise SpecError(
            f"{file}: exists already; init does not overwrite, name another file"
        ) from None
    found = {"schema": SCHEMA, "path": str(file)}
    return Result(f"wrote {file}; next: pearl check {file}", found)


@command
def check(
    spec: Spec,
    imports: Annotated[
        bool,
        typer.Option("--import", help="Import the code that it names, to check that as well."),
    ] = False,
    set: Set = None,
    json_file: Json = None,
) -> Result:
    """Read a spec and say everything that is wrong with it, importing nothing that it names."""
    from pearl.planner.planner import check_estimates
    from pearl.spec import trust
    from pearl.spec.code_checks import check_code
    from pearl.spec.reading import state
    from pearl.training import memory

    stated = state(spec, set=_overrides(set))
    unseen = [] if imports else trust.named(stated.raw)
    if imports:
        check_code(_load(spec, set))
    warned = None
    if not unseen:  # else sizes are those of an environment or networks not looked at
        system = _load(spec, set)
        check_estimates(system)
        warned = memory.warning(system)
    found = {
        "schema": SCHEMA,
        "status": "valid",
        "name": stated.name,
        "spec_sha256": stated.sha256,
        "algorithm": stated.algorithm.name,
        "env": stated.algorithm.env,
        "platform": stated.platform.name,
        "devices": [d.name for d in stated.platform.devices],
        "objective": stated.objective,
        "not_looked_at": [vars(each) for each in unseen],
        "warnings": [warned] if warned else [],
    }
    text = (
        f"{spec}: valid: {found['algorithm']} on {found['env']}, platform {found['platform']} "
        f"({', '.join(d.name for d in stated.platform.devices)}), objective {found['objective']}"
    )
    lines = [f"warning: {warned}"] if warned else []
    lines += [f"not looked at: {each}: {each.unknown}" for each in unseen]
    if unseen:
        lines.append("pearl check --import imports this code, which runs it, and looks")
    return Result("\n".join([text, *lines]), found)


class Objective(StrEnum):
    """What a plan is best at; the same names as in a spec."""

    throughput = auto()
    power_efficiency = auto()
    makespan = auto()


class Kind(StrEnum):
    """What `pearl list` lists."""

    algorithms = auto()
    platforms = auto()
    devices = auto()
    kinds = auto()
    methods = auto()


@command
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    json_file: Json = None,
) -> Result:
    """List what a spec may name."""
    from pearl.cli.listing import LISTS

    items = LISTS[kind]()
    width = max(len(i["name"]) for i in items)
    text = "\n".join(f"{i['name']:<{width}}  {i['summary']}" for i in items)
    return Result(text, {"schema": SCHEMA, "kind": kind.value, "items": items})


@command
def devices(json_file: Json = None) -> Result:
    """Show the devices of this machine."""
    from pearl.cli.text import platform_object, platform_text
    from pearl_devices.discover import host

    platform = host()
    return Result(platform_text(platform), {"schema": SCHEMA, **platform_object(platform)})


@command
def calibrate(
    check: Annotated[
        bool, typer.Option("--check", help="Compare the stored one with kernels it has not seen.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=1.0, help="What measuring may take.")] = 30.0,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.1, help="When it is ended, in seconds; default: 2 x seconds + 120."),
    ] = None,
    json_file: Json = None,
) -> Result:
    """Measure the kernels of this host, for plans to rely on."""
    from pearl.cli.text import calibration_text, checks_text
    from pearl_estimators.host import on_demand
    from pearl_estimators.host.calibration_file import path

    if not check:
        print(f"measuring this host, about {seconds:.0f} s", file=sys.stderr, flush=True)
    found = on_demand.calibrate(seconds=seconds, force=not check, limit_s=time_limit)
    value = {**found.to_json(), "path": str(path())}
    if not check:
        return Result(calibration_text(found, value["path"]), value)
    rows = on_demand.check(found)
    value["checks"] = [{**vars(row), "held": row.held} for row in rows]
    return Result(checks_text(rows), value)


@command
def calibrate_gpu(
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS.csv",
            help="Timed operators: operator, batch, m, k, n, streams, seconds (of one call).",
        ),
    ],
    model: Annotated[str, typer.Option(help="The GPU, as `pearl devices` or a platform names it.")],
    multiprocessors: Annotated[int, typer.Option(min=1, help="How many SMs it has.")],
    source: Annotated[str, typer.Option(help="Who timed them, and with what.")],
    json_file: Json = None,
) -> Result:
    """Fit what operators cost on a GPU to timings from elsewhere, for plans to rely on."""
    from pearl.cli.text import gpu_calibration_text
    from pearl_estimators.gpu import calibration as gpu

    found = gpu.calibrate_gpu(model, multiprocessors, gpu.read_rows(rows), source)
    path = gpu.store_gpu(found)
    value = {**found.to_json(), "path": str(path)}
    return Result(gpu_calibration_text(found, str(path)), value)


@command
def plan(
    spec: Spec,
    diff: Annotated[
        Path | None, typer.Option(metavar="OTHER.json", help="Show what differs from this plan.")
    ] = None,
    objective: Annotated[
        Objective | None, typer.Option(help="What to be best at, instead of the spec's.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="How to solve; see `list methods`.")] = None,
    time_limit: Annotated[float, typer.Option(min=0.0, help="Seconds to solve at most.")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Seed of the solver.")] = 0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what bounds it and what would help.")
    ] = False,
    runner_ups: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --explain: write the plans that come close there."),
    ] = None,
    set: Set = None,
    json_file: Json = None,
) -> Result:
    """Decide where everything runs, and predict what that gives."""
    from pearl.cli.text import difference, difference_text
    from pearl.explanation import explain as explained
    from pearl.planner.planner import plan as make_plan
    from pearl.planning.plans import load_plan
    from pearl.report.report import Report

    if runner_ups is not None and not explain:
        raise SpecError(f"--runner-ups {runner_ups}: add --explain, which finds them")
    other = load_plan(diff) if diff else None
    asked = [f"objective={objective.value}"] if objective else []
    system = _load(spec, [*(set or ()), *asked])
    _warn_of_measuring(system)
    found = make_plan(system, method=method, time_limit_s=time_limit, seed=seed)
    explanation = explained(found) if explain else None
    report = Report(found, None, system, explanation=explanation)
    text, value = str(report), report.to_json()
    if explanation is not None and runner_ups is not None:
        runner_ups.mkdir(parents=True, exist_ok=True)
        for n, close in enumerate(explanation.runner_ups.plans, 1):
            close.plan.save(runner_ups / f"plan-{n}.json")
        text += f"\n\n{len(explanation.runner_ups.plans)} plans that come close: {runner_ups}"
    if other is not None:
        value["diff"] = difference(other, found)
        text = difference_text(other, found)
    return Result(text, value)


@command
def pareto(
    spec: Spec,
    gap: Annotated[
        float, typer.Option(min=0.0, help="Largest relative gap between neighbours.")
    ] = 0.01,
    time_limit: Annotated[float, typer.Option(min=0.0, help="Seconds to solve at most.")] = 60.0,
    set: Set = None,
    json_file: Json = None,
) -> Result:
    """Show what power buys: the plans between least power and most throughput."""
    from pearl.cli.text import front_text
    from pearl.planner.planner import front

    system = _load(spec, set)
    _warn_of_measuring(system)
    plans = front(system, gap=gap, time_limit_s=time_limit)
    return Result(front_text(plans), {"schema": SCHEMA, "plans": [p.to_json() for p in plans]})


@command
def balance(
    spec: Spec,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw throughput and steps per joule.")
    ] = None,
    set: Set = None,
    json_file: Json = None,
) -> Result:
    """Show how many actor threads the GPU needs: the ratio of threads to multiprocessors."""
    from pearl.files import write_atomically
    from pearl.planner.gpu_balance import balance as sweep
    from pearl.report.balance_text import balance_svg, balance_text

    system = _load(spec, set)
    _warn_of_measuring(system)
    found = sweep(system)
    if plot is not None:
        write_atomically(plot, balance_svg(found).encode())
    return Result(balance_text(found), {"schema": SCHEMA, **found.to_json()})


@command
def train(
    spec: Spec,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", metavar="plan.json", help="Train by this plan.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Env steps of the whole run; default: the spec's."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=SEEDS - 1, help="Seed; default: the spec's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run folder; default: runs/NAME.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the folder's checkpoint, with its plan and seed; where there is none, "
            "begin. --steps: another end of the run.",
        ),
    ] = False,
    emulate: Annotated[
        bool,
        typer.Option("--emulate", help="Compute on the host, on the virtual clock of the plan."),
    ] = False,
    replan: Annotated[
        bool,
        typer.Option("--replan", help="Plan anew at checkpoints where the period is 15 % off."),
    ] = False,
    trust: Trust = False,
    set: Set = None,
    json_file: Json = None,
) -> Result:
    """Plan, train, and report prediction beside measurement."""
    from pearl.planner.planner import graph_of, spare
    from pearl.spec.reading import state
    from pearl.training.interruption import ENDING, interruptible
    from pearl.training.progress import shown
    from pearl.training.trainer import compile as compile_system
    from pearl.training.trainer import plan_of_run, require_own

    folder = run_folder(state(spec, set=_overrides(set)).name, out, resume=resume)
    if resume:
        require_own(folder, trust=trust)
    system = _load(spec, set)
    kept = plan_of_run(folder, system) if resume and plan_file is None else None
    planned = plan_file or kept
    if planned is None:
        spare(system, graph_of(system))
    if planned is None or replan:
        _warn_of_measuring(system)
    trainer = compile_system(system, plan=planned, emulate=emulate, seed=seed)
    with interruptible(*ENDING), shown() as progress:  # they end this after the progress bar
        run = trainer.train(
            steps=steps, seed=seed, out=folder, resume=resume, progress=progress, replan=replan
        )
    text = f"{trainer.report(run)}\n\nrun folder: {folder}"
    if run.status == "failed":
        _error(f"{folder}: training failed: {run.message}")
    decided = run.drift.decisions if run.drift else ()
    mended = [event for event in run.events if event not in decided]
    if mended and run.status != "failed":
        print(f"{len(mended)} events, the last: {mended[-1]}", file=sys.stderr, flush=True)
    status = {"done": DONE, "failed": FAILED, "interrupted": INTERRUPTED}[run.status]
    return Result(text, run.to_json(), status)


def run_folder(name: str, out: Path | None, *, resume: bool) -> Path:
    """The folder of a run: `out`; else of runs/NAME, runs/NAME-2, … the first that is free, or to
    resume the last there is.

    A folder that holds a run already is a SpecError unless it is to be resumed. Of one to be
    resumed that is not there the run begins.
    """
    if out is not None:
        from pearl.planning.runs import check_folder

        check_folder(out)
        if (out / "plan.json").exists() and not resume:
            raise SpecError(
                f"--out {out}: holds a run already; add --resume to go on with it, or name another"
            )
        return out
    name = re.sub(r"[^\w.-]+|^\.+", "-", name)
    first, number = Path("runs") / name, 1
    folder, last = first, None
    while folder.exists():
        last, number = folder, number + 1
        folder = first.with_name(f"{name}-{number}")
    return last if resume and last is not None else folder


class Which(StrEnum):
    """A policy that a run folder keeps."""

    best = auto()
    last = auto()


Chosen = Annotated[Which, typer.Option(help="The best evaluated one, or that of the end.")]


def _policy(run_dir: Path, which: Which, *, trust: bool) -> Policy:
    from pearl.training.policy import FILES, Policy

    return Policy.load(run_dir / FILES[which] if run_dir.is_dir() else run_dir, trust=trust)


@command
def eval_(
    run_dir: RunDir,
    trust: Trust = False,
    policy: Chosen = Which.best,
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 20,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Seed of the environments.")] = 0,
    json_file: Json = None,
) -> Result:
    """Judge a policy of a run on fresh episodes."""
    from pearl.training.evaluation import evaluate

    judged = evaluate(_policy(run_dir, policy, trust=trust), episodes, seed)
    returns = judged.returns
    mean = sum(returns) / len(returns)
    found = {
        "schema": SCHEMA,
        "run": str(run_dir),
        "policy": policy,
        "episodes": episodes,
        "seed": seed,
        "mean": mean,
        "returns": returns,
        "cut": judged.cut,
    }
    spread = f"lowest {min(returns):,.1f}, highest {max(returns):,.1f}"
    text = f"mean return {mean:,.1f} over {episodes} episodes ({spread})"
    return Result(f"{text}\n{judged.text}" if judged.cut else text, found)


@command
def export(
    run_dir: RunDir,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")],
    trust: Trust = False,
    policy: Chosen = Which.best,
    json_file: Json = None,
) -> Result:
    """Write a policy of a run as a torch state_dict (safetensors)."""
    from pearl.training.policy_export import export as write

    chosen = _policy(run_dir, policy, trust=trust)
    found = write(chosen, file)
    text = f"wrote {file}: {', '.join(chosen.tensors())}"
    return Result(text, {**found, "path": str(file)})


@command
def report(run_dir: RunDir, json_file: Json = None) -> Result:
    """Print and rewrite the report of a run."""
    from pearl.report.report import load_report

    found = load_report(run_dir)
    found.save(run_dir / "report.html")
    return Result(str(found), found.to_json())


@command
def schema(json_file: Json = None) -> Result:
    """Print the JSON Schema of specs, for editors."""
    from pearl.spec.reading import json_schema

    found = json_schema()
    return Result(json.dumps(found, indent=2), found)


def main() -> None:
    """Entry point of the `pearl` command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:  # a terminal without UTF-8 shows ? rather than nothing
            reconfigure(errors="replace")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
