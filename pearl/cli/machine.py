"""Commands about this machine: `devices`, `calibrate`, `calibrate-gpu`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pearl.cli.application import SCHEMA, Result, command
from pearl.cli.arguments import Json


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
