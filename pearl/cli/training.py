"""Commands about runs: `train`, `eval`, `export`, `report`."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
import warnings
from enum import StrEnum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pearl.cli.application import DONE, FAILED, INTERRUPTED, SCHEMA, Result, command, error_line
from pearl.cli.arguments import (
    Html,
    Json,
    Keys,
    RunDir,
    Set,
    Spec,
    Trust,
    Verbose,
    choose_folder,
    load_spec,
    overrides,
    warn_of_measuring,
    whole_number,
)
from pearl.errors import SpecError
from pearl.formatting import count, printable
from pearl.seeds import SEEDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pearl.planning.runs import Run
    from pearl.training.policy import Policy
    from pearl.training.steering import Callback
    from pearl.training.trainer import Trainer


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Within this context, garbage collection is rare, because modules, plan and kernels stay."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextlib.contextmanager
def _naming_closed_files(trainer: Trainer) -> Iterator[None]:
    """Within this context, blame code that the spec names for files that are closed amid a run."""
    from pearl.runtime.protocol.channels import count_episodes
    from pearl.spec.trust import find_named_code
    from pearl_devices.base import EnvironmentFailed

    try:
        yield
    except OSError as error:
        if error.errno != errno.EBADF or not find_named_code(trainer.system.raw):
            raise
        session = trainer.session
        step = session.state.iteration * session.compiled.graph.env_steps
        raise EnvironmentFailed(
            f"environment {trainer.system.algorithm.env!r}, episode "
            f"{count_episodes(session.arrays) + 1}, by step {step}: code of the spec has closed "
            f"files of this process ({error.strerror}); the last checkpoint stays valid"
        ) from error


@command
def train(
    spec: Spec,
    keys: Keys = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", metavar="plan.json", help="Use this plan.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            parser=whole_number,
            metavar="N",
            help="Env steps of the whole run, such as 50000 or 5e4; default: the spec's.",
        ),
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
            help="Resume from the checkpoint in the run folder, with its plan and seed; start "
            "a new "
            "run if there is none. Use --steps to extend it.",
        ),
    ] = False,
    emulate: Annotated[
        bool,
        typer.Option(
            "--emulate", help="Compute on this host but report the plan's simulated time."
        ),
    ] = False,
    replan: Annotated[
        bool,
        typer.Option(
            "--replan",
            help="At checkpoints, search for a better plan if the measured period is more "
            "than 15 % off.",
        ),
    ] = False,
    start_from: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Initialise the networks from a run folder, a policy file or a torch state_dict.",
        ),
    ] = None,
    stop_at_return: Annotated[
        float | None,
        typer.Option(metavar="X", help="Stop when the mean return of an evaluation is at least X."),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Stop after N evaluations without improvement."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=WHERE",
            help="Log to csv=FILE, tensorboard=DIR, wandb=PROJECT or video=DIR; several may be "
            "given.",
        ),
    ] = None,
    trust: Trust = False,
    verbose: Verbose = False,
    set: Set = None,
    json_file: Json = None,
) -> Result:
    """Plan, train, and report predictions next to measurements."""
    with _starting():
        from pearl.report.terminal import terminal_width
        from pearl.spec.reading import load_static
        from pearl.spec.system import no_learning_warning
        from pearl.training.interruption import ENDING, interruptible
        from pearl.training.progress import progress_display
        from pearl.training.trainer import compile as compile_system
        from pearl.training.trainer import plan_of_run, require_trusted_run

        callbacks = _callbacks(stop_at_return, patience, log or ())
        pairs = [*(keys or ()), *(set or ())]
        folder = run_folder(load_static(spec, set=overrides(pairs)).name, out, resume=resume)
        if resume:
            require_trusted_run(folder, trust=trust)
        system = load_spec(spec, pairs)
        stored_plan = plan_of_run(folder, system) if resume and plan_file is None else None
        if warning := no_learning_warning(system, steps):
            print(f"warning: {warning}", file=sys.stderr, flush=True)
        planned = plan_file or stored_plan
        if planned is None or replan:
            warn_of_measuring(system, to_train=True)
        trainer = compile_system(system, plan=planned, emulate=emulate, seed=seed)
    with (
        interruptible(*ENDING),
        progress_display() as progress,
        _naming_closed_files(trainer),
    ):  # the progress bar comes first, because these may end the run
        run = trainer.train(
            steps=steps,
            seed=seed,
            out=folder,
            resume=resume,
            start_from=start_from,
            callbacks=callbacks,
            progress=progress,
            replan=replan,
        )
    text = ""
    with _after_the_run("its report"):
        text = trainer.report(run).text(terminal_width(), verbose=verbose) + "\n\n"
    text += f"run folder: {folder} (report.html has every figure)"
    if run.status == "failed":
        error_line(f"{folder}: training failed: {run.message}")
    decisions = run.drift.decisions if run.drift else ()
    recoveries = [event for event in run.events if event not in decisions]
    if recoveries and run.status != "failed":
        last = printable(recoveries[-1])
        print(f"{len(recoveries)} events, the last: {last}", file=sys.stderr, flush=True)
    status = {"done": DONE, "stopped": DONE, "failed": FAILED, "interrupted": INTERRUPTED}[
        run.status
    ]
    return Result(text, run.to_json(), status, partial(_after, trainer, run))


def _after(trainer: Trainer, run: Run) -> None:
    with _after_the_run("the timing of its kernels"):
        _calibrate_after(trainer, run)


def _calibrate_after(trainer: Trainer, run: Run) -> None:
    """Time the kernels of a finished run for a short while, and print how many were timed."""
    from pearl.training import calibrating
    from pearl_estimators.host import calibrator

    if run.status not in ("done", "stopped") or not trainer.system.train.calibrate_after:
        return
    try:
        wanted = calibrating.find_untimed_codes(trainer)
        if not wanted or not calibrator.cores_are_idle(1):
            return
        limit = f"at most {calibrating.LIMIT_S:.0f} s; Ctrl-C skips it"
        print(f"the run is complete; timing its kernels for later plans, {limit}", file=sys.stderr)
        timed, left = calibrating.calibrate_after(wanted)
    except KeyboardInterrupt:
        print("skipped; the timings so far are stored", file=sys.stderr)
        return
    more = f"; {left} are left for the next run" if left else ""
    print(f"{timed} kernels timed{more}", file=sys.stderr)


@contextlib.contextmanager
def _after_the_run(what: str) -> Iterator[None]:
    """Within this context, an error is one sentence, because the run has ended and is saved."""
    from pearl_devices.user_imports import error_text

    try:
        yield
    except Exception as error:
        said = f"note: the run has ended and is saved; {what} failed: {error_text(error)}"
        print(said, file=sys.stderr, flush=True)


def _callbacks(
    stop_at_return: float | None, patience: int | None, logs: Sequence[str]
) -> list[Callback]:
    """The callbacks for the options of `train`."""
    from pearl.callbacks.csv_log import CsvLog
    from pearl.callbacks.patience import Patience
    from pearl.callbacks.stop_at_return import StopAtReturn
    from pearl.callbacks.tensorboard import TensorBoard
    from pearl.callbacks.video import Video
    from pearl.callbacks.wandb_log import WandB

    kinds: dict[str, Callable[[str], Callback]] = {
        "csv": CsvLog,
        "tensorboard": TensorBoard,
        "wandb": WandB,
        "video": Video,
    }
    callbacks: list[Callback] = []
    for option in logs:
        kind, _, target = option.partition("=")
        if kind not in kinds or not target:
            raise SpecError(f"--log {option}: KIND=WHERE is needed, KIND one of {', '.join(kinds)}")
        # Code of the user may leave the working folder before a file is opened.
        callbacks.append(kinds[kind](target if kind == "wandb" else os.path.abspath(target)))
    if stop_at_return is not None:
        callbacks.append(StopAtReturn(stop_at_return))
    if patience is not None:
        callbacks.append(Patience(patience))
    return callbacks


def run_folder(name: str, out: Path | None, *, resume: bool) -> Path:
    """Return the folder of a run: `out`; else the first free one of runs/NAME, runs/NAME-2, …, or
    to resume the last existing one.

    With `resume`, a missing folder is the folder of a new run.

    Raises:
        SpecError: `out` holds a run already, and `resume` is false.
    """
    if out is not None:
        from pearl.planning.runs import check_folder
        from pearl.run_folder import find

        check_folder(out)
        if find(out, "plan.json") and not resume:
            raise SpecError(
                f"--out {out}: already holds a run; add --resume to continue it, or name another"
            )
        return out
    return choose_folder("runs", name, resume=resume)


class Which(StrEnum):
    """A policy that a run folder holds."""

    best = auto()
    last = auto()


Chosen = Annotated[
    Which, typer.Option(help="best: best evaluated policy; last: policy at the end of training.")
]


def _policy(run_dir: Path, which: Which, *, trust: bool) -> Policy:
    from pearl.run_folder import file_of
    from pearl.training.policy import FILES, Policy

    return Policy.load(file_of(run_dir, FILES[which]), trust=trust)


@command
def eval_(
    run_dir: RunDir,
    trust: Trust = False,
    policy: Chosen = Which.best,
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 20,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Seed of the environments.")] = 0,
    json_file: Json = None,
) -> Result:
    """Evaluate a policy of a run on new episodes."""
    from pearl.training.evaluations.evaluation import evaluate

    evaluation = evaluate(_policy(run_dir, policy, trust=trust), episodes, seed)
    returns = evaluation.returns
    mean = sum(returns) / len(returns)
    value = {
        "schema": SCHEMA,
        "run": str(run_dir),
        "policy": policy,
        "episodes": episodes,
        "seed": seed,
        "mean": mean,
        "returns": returns,
        "cut": evaluation.cut,
    }
    spread = f"lowest {count(min(returns))}, highest {count(max(returns))}"
    text = f"mean return {count(mean)} over {episodes} episodes ({spread})"
    return Result(f"{text}\n{evaluation.text}" if evaluation.cut else text, value)


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
    value = write(chosen, file)
    text = f"wrote {file}: {', '.join(chosen.tensors())}"
    return Result(text, {**value, "path": str(file)})


@command
def report(
    run_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN_DIR...", help="Folders left by `pearl train`."),
    ],
    verbose: Verbose = False,
    html_file: Html = None,
    json_file: Json = None,
) -> Result:
    """Print and rewrite the report of a run; of several runs, put them side by side."""
    from pearl.report.html import today
    from pearl.report.report import load_report
    from pearl.report.terminal import terminal_width
    from pearl.run_folder import clear

    for folder in run_dirs:
        if (folder / "sweep.json").is_file() and not (folder / "run.json").is_file():
            raise SpecError(
                f"{folder}: is the folder of a sweep, whose report is {folder / 'sweep.html'} (and "
                f"sweep.csv); of one of its runs: pearl report {folder}/runs/NAME"
            )
    reports = [load_report(folder) for folder in run_dirs]
    if len(reports) > 1:
        from pearl.report.compare import SideBySide, side_of_run

        found = SideBySide(tuple(side_of_run(r) for r in reports))
        return Result(str(found), found.to_json(), page=lambda: found.page(today()))
    only = reports[0]
    try:
        only.save(clear(run_dirs[0], "report.html"))
        only.save_trace(clear(run_dirs[0], "trace.json"))
    except OSError as error:  # a folder of others, or a full disk: the report itself is sound
        warnings.warn(
            f"{run_dirs[0]}: its report.html and trace.json cannot be written "
            f"({error.strerror or error}) and stay as they were; --html FILE writes the page "
            "elsewhere",
            stacklevel=1,
        )
    text = only.text(terminal_width(), verbose=verbose)
    return Result(text, only.to_json(), page=lambda: only.page(today()))
