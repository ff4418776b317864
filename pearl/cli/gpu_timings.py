"""The command about GPUs that another machine has timed: `calibrate-gpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pearl.cli.application import Result, command
from pearl.cli.arguments import Json


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
    source: Annotated[str, typer.Option(help="Who measured the timings, and how.")],
    json_file: Json = None,
) -> Result:
    """Calibrate a GPU model from a CSV file of operator timings."""
    from pearl.cli.text import gpu_calibration_text
    from pearl_estimators.gpu import calibration as gpu

    calibration = gpu.calibrate_gpu(model, multiprocessors, gpu.read_rows(rows), source)
    path = gpu.store_gpu(calibration)
    value = {**calibration.to_json(), "path": str(path)}
    return Result(gpu_calibration_text(calibration, str(path)), value)
