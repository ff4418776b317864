"""The command about many runs: `sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pearl.cli.application import DONE, FAILED, INTERRUPTED, Result, command, error_line
from pearl.cli.arguments import (
    Html,
    Json,
    Keys,
    Set,
    Spec,
    choose_folder,
    load_spec,
    overrides,
    warn_of_measuring,
)
from pearl.errors import SpecError


@command
def sweep(
    spec: Spec,
    keys: Keys = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="SEEDS", help="0..9 or 0,3,7; default: the spec's seed."),
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
            help="Asynchronous successive halving: only the best 1/eta of the settings pass "
            "each rung.",
        ),
    ] = None,
    tournament: Annotated[
        str | None,
        typer.Option(
            metavar="rounds=N,members=N,board=N",
            help="Tournament: each round starts from a run on the leaderboard, with the "
            "--over values perturbed.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Sweep folder; default: sweeps/NAME.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume the sweep in this folder; the other options must be the same."
        ),
    ] = False,
    restarts: Annotated[
        int, typer.Option(min=0, help="How often to restart a run whose process died.")
    ] = 2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the schedule without running.")
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="ray",
            help="Run on all nodes of the running Ray cluster; default: this machine.",
        ),
    ] = None,
    set: Set = None,
    html_file: Html = None,
    json_file: Json = None,
) -> Result:
    """Train every combination of seeds and values on this machine or a cluster."""
    from pearl.population.display import sweep_display
    from pearl.population.members import parse_options, parse_over, parse_seeds
    from pearl.population.population import ASHA, TOURNAMENT
    from pearl.population.population import sweep as swept
    from pearl.report.html import today
    from pearl.training.interruption import ENDING, interruptible

    given_seeds = None if seeds is None else parse_seeds(seeds)
    if given_seeds is not None and len(given_seeds) == 1 and given_seeds[0] > 1:
        seed = given_seeds[0]
        print(
            f"note: --seeds {seed} is one run, with seed {seed}; 0..{seed - 1} is {seed} runs",
            file=sys.stderr,
            flush=True,
        )
    values: dict[str, list[object]] = {}
    for key, listed_values in map(parse_over, over or ()):
        if key in values:
            raise SpecError(f"--over {key}: given twice; give all its values at once")
        values[key] = listed_values
    pairs = [*(keys or ()), *(set or ())]
    overlay, system = overrides(pairs), load_spec(spec, pairs)
    if not resume:
        warn_of_measuring(system, to_train=True)
    folder = None if dry_run else out or choose_folder("sweeps", system.name, resume=resume)
    with interruptible(*ENDING), sweep_display() as watcher:
        result = swept(
            spec,
            seeds=given_seeds,
            over=values,
            set=overlay,
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
    text = str(result) if folder is None else f"{result}\n\nsweep folder: {folder}"
    if result.status in ("failed", "interrupted"):
        text += "\nto resume: repeat the command with --resume"
    if result.status == "failed":
        error_line(f"{folder}: some runs failed")
    status = {"failed": FAILED, "interrupted": INTERRUPTED}.get(result.status, DONE)
    return Result(text, result.to_json(), status, page=lambda: result.page(today()))
