"""The command about what would improve a plan: `advise`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from pearl.cli.application import Result, command, say
from pearl.cli.arguments import Html, Json, Keys, Set, Spec, load_spec, warn_of_measuring
from pearl.seeds import SEEDS


@command
def advise(
    spec: Spec,
    keys: Keys = None,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            metavar="DEVICE",
            help="Evaluate adding this device (hypothetical); see `pearl list devices`.",
        ),
    ] = None,
    about: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUESTION", help="Answer only this question: bound, limits, devices, buy, …"
        ),
    ] = None,
    platform: Annotated[
        str | None, typer.Option(help="Platform name or file; overrides the spec.")
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=0.0, help="Time limit of all questions, in seconds.")
    ] = 15.0,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Seed of the draws.")] = 0,
    set: Set = None,
    html_file: Html = None,
    json_file: Json = None,
) -> Result:
    """Report the bottleneck of a spec and what would improve it, with confidence."""
    from pearl.advice import advise as advised
    from pearl.advice.case import Finding
    from pearl.advice.page import footer, verdict_text
    from pearl.report.html import today

    override = [f"platform={platform}"] if platform else []
    system = load_spec(spec, [*(keys or ()), *(set or ()), *override])
    warn_of_measuring(system)

    shown: list[str] = []

    def listener(question: str, verdicts: Sequence[Finding]) -> None:
        if not verdicts:
            print(f"advise: {question} …", file=sys.stderr, flush=True)
        elif json_file != "-":
            say("\n".join(verdict_text(v, shown) for v in verdicts))

    words = [spec, *(keys or ()), *(set or ()), *override]
    advice = advised(
        system,
        add=add or (),
        time_limit_s=time_limit,
        seed=seed,
        about=about or (),
        listener=listener,
        words=words,
    )
    return Result(footer(advice), advice.to_json(), page=lambda: advice.page(today()))
