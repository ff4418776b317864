"""The command about many runs: `sweep`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from pearl.cli.application import DONE, FAILED, INTERRUPTED, Result, command, error_line
from pearl.cli.arguments import Json, Keys, Set, Spec, load_spec, overrides, warn_of_measuring
from pearl.errors import SpecError


@command
def sweep(
    spec: Spec,
    keys: Keys = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="SEEDS", help="0..9 or 0,3,7; default: the spec's alone."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=V1,V2,…",
            help="Values of a key of the spec; given several times, every combination.",
        ),
    ] = None,
    asha: Annotated[
        str | None,
        typer.Option(
            metavar="eta=N,min_steps=N",
            help="Stop settings early: of those that come to a rung the best 1/eta go on.",
        ),
    ] = None,
    tournament: Annotated[
        str | None,
        typer.Option(
            metavar="rounds=N,members=N,board=N",
            help="Rounds that begin from a leaderboard, with the values of --over changed.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Its folder; default: sweeps/NAME.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep in the folder, as it was asked.")
    ] = False,
    restarts: Annotated[
        int, typer.Option(min=0, help="How often a run whose process died is started again.")
    ] = 2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the schedule, and run nothing.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray", help="All nodes of the Ray cluster that runs; default: this machine."
        ),
    ] = None,
    set: Set = None,
    json_file: Json = None,
) -> Result:
    """Train many runs, seeds by values, over this machine's cores or those of a cluster."""
    from pearl.population.display import sweep_display
    from pearl.population.members import parse_options, parse_over, parse_seeds
    from pearl.population.population import ASHA, TOURNAMENT
    from pearl.population.population import sweep as swept
    from pearl.training.interruption import ENDING, interruptible

    values: dict[str, list[object]] = {}
    for key, found in map(parse_over, over or ()):
        if key in values:
            raise SpecError(f"--over {key}: given twice; give all its values at once")
        values[key] = found
    given = [*(keys or ()), *(set or ())]
    laid, system = overrides(given), load_spec(spec, given)
    if not resume:
        warn_of_measuring(system, to_train=True)
    folder = None if dry_run else sweep_folder(system.name, out, resume=resume)
    with interruptible(*ENDING), sweep_display() as watcher:
        done = swept(
            spec,
            seeds=None if seeds is None else parse_seeds(seeds),
            over=values,
            set=laid,
            asha=None if asha is None else parse_options("--asha", asha, ASHA),
            tournament=(
                None
                if tournament is None
                else parse_options("--tournament", tournament, TOURNAMENT)
            ),
            out=folder,
            resume=resume,
            restarts=restarts,
            dry_run=dry_run,
            on=on,
            watch=watcher,
        )
    text = str(done) if folder is None else f"{done}\n\nsweep folder: {folder}"
    if done.status in ("failed", "interrupted"):
        text += "\n--resume, with the same words, goes on with it"
    if done.status == "failed":
        error_line(f"{folder}: not every run has ended well")
    status = {"failed": FAILED, "interrupted": INTERRUPTED}.get(done.status, DONE)
    return Result(text, done.to_json(), status)


def sweep_folder(name: str, out: Path | None, *, resume: bool) -> Path:
    """The folder of a sweep: `out`; else of sweeps/NAME, sweeps/NAME-2, … the first that is free,
    or to resume the last there is.
    """
    if out is not None:
        return out
    first, number = Path("sweeps") / re.sub(r"[^\w.-]+|^\.+", "-", name), 1
    folder, last = first, None
    while folder.exists():
        last, number = folder, number + 1
        folder = first.with_name(f"{first.name}-{number}")
    return last if resume and last is not None else folder
