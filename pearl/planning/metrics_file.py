"""The rows of a run's `metrics.csv`, read within bounds; `pearl.training.metrics` writes them."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pearl import run_folder
from pearl.errors import SpecError
from pearl.files import read_bounded
from pearl.formatting import printable
from pearl.json_files import MOST_BYTES
from pearl_devices.validation import quote

Row = Mapping[str, float]
"""One line of `metrics.csv`: column → number, without empty cells."""


MOST_ROWS, MOST_COLUMNS = 100_000, 1_000
"""Bounds of `metrics.csv` (assumed): a run writes about 200 rows, a resumed one as many more."""


def metrics_lines(path: Path) -> list[str]:
    """Return the lines of a run's `metrics.csv`; none if there is no such file.

    Raises:
        SpecError: the file cannot be read, is a link or no regular file, or exceeds MOST_BYTES,
            MOST_ROWS or MOST_COLUMNS.
    """
    run_folder.find(path.parent, path.name)
    try:
        text = read_bounded(path, MOST_BYTES, follow=False).decode()
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        return []
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None
    if text.count("\n") > MOST_ROWS:
        raise SpecError(f"{path}: more than {MOST_ROWS:,} lines; a run writes about 200")
    lines = text.splitlines()
    if lines and lines[0].count(",") >= MOST_COLUMNS:
        raise SpecError(f"{path}: more than {MOST_COLUMNS:,} columns; a run writes about 15")
    return lines


def load_metrics(path: str | Path) -> tuple[Row, ...]:
    """Return the rows of a run's `metrics.csv`; empty if there is no such file.

    Raises:
        SpecError: a cell is no number, or the file cannot be read (`metrics_lines`); the text names
            file, line and column.
    """
    rows: list[Row] = []
    reader = csv.DictReader(metrics_lines(Path(path)))
    try:
        for line in reader:
            rows.append(_row(line, f"{path}:{reader.line_num}"))
    except csv.Error as error:
        raise SpecError(f"{path}:{reader.line_num}: cannot be read: {error}") from None
    return tuple(rows)


def _row(line: Mapping[Any, Any], where: str) -> Row:
    """Return the finite numbers of a line; cells beyond the columns are ignored."""
    row: dict[str, float] = {}
    for column, cell in line.items():
        if not column or not cell:
            continue
        try:
            number = float(cell)
        except ValueError:
            raise SpecError(
                f"{where}: {printable(column)} is {quote(cell)}; a number is needed"
            ) from None
        if math.isfinite(number):
            row[printable(column)] = number
    return row
