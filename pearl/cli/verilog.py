"""The command about simulated FPGAs: `rtl`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pearl.cli.application import SCHEMA, Result, command
from pearl.cli.arguments import Json, Keys, Set, load_spec, warn_of_measuring
from pearl.errors import SpecError
from pearl.seeds import SEEDS


@command
def rtl(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="[SPEC]", help="The spec; none with --resources.", show_default=False
        ),
    ] = None,
    keys: Keys = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write to, new or empty.")
    ] = None,
    resources: Annotated[
        bool,
        typer.Option(
            "--resources",
            help="Make the table of registers and logic cells again (logic.json), with yosys.",
        ),
    ] = False,
    time_limit: Annotated[
        float, typer.Option(min=0.0, help="Time limit of the solver, in seconds.")
    ] = 20.0,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Seed of the solver.")] = 0,
    set: Set = None,
    json_file: Json = None,
) -> Result:
    """Write the Verilog of the plan's learner and sum tree on a simulated FPGA, with test
    benches."""
    from pearl.planner.verilog import write_resources, write_verilog

    if out is None:
        raise SpecError("pearl rtl: no folder is given; add --out DIR, a new or an empty folder")
    if resources == (spec is not None):
        raise SpecError("pearl rtl: give either a spec or --resources")
    if spec is None:
        different = write_resources(out, listener=lambda line: print(line, file=sys.stderr))
        found = (
            f"differs from the table in use in {', '.join(different)}"
            if different
            else "equals the table in use"
        )
        value = {"schema": SCHEMA, "table": str(out / "logic.json"), "different": different}
        return Result(f"{out / 'logic.json'}: the table for the simulated FPGA {found}", value)
    system = load_spec(spec, [*(keys or ()), *(set or ())])
    warn_of_measuring(system)
    written = write_verilog(system, out, time_limit, seed)
    lines = [
        f"{w.folder}: {w.task} as {w.variant} on the simulated FPGA, {w.cycles:,} cycles {of}, "
        f"{w.blocks:,} DSP blocks; README.md there has the commands"
        for kind, of in (("learners", "a gradient step"), ("trees", "for the draws of a batch"))
        for w in written[kind]
    ]
    value = {"schema": SCHEMA} | {
        kind: [w.to_json() for w in some] for kind, some in written.items()
    }
    return Result("\n".join(lines), value)
