"""The published figures: how they are read, predicted and held out, on lines of a made-up table."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from benchmarks.estimators import published
from benchmarks.estimators.published_points import Constants, predicted, read

COLUMNS = (
    "id", "sort", "what", "algorithm", "network", "batch", "envs", "gpu", "cpu", "precision",
    "framework", "value", "unit", "counts", "role", "source", "read",
)  # fmt: skip
CARD = "NVIDIA GeForce RTX 4090"
LINES = (
    {"id": "A1", "what": "product 1024x1024x1024", "value": "47", "unit": "us"},
    {"id": "A2", "what": "vectorized element-wise kernel", "value": "1", "unit": "us"},
    {"id": "A3", "what": "product 64x64x64", "value": "1", "unit": "us", "role": "above"},
    {"id": "A4", "what": "a rumour", "value": "1", "unit": "us"},
    {"id": "A5", "what": "watts", "value": "100", "unit": "W"},
    {
        "id": "A6", "sort": "2", "what": "gradient step", "algorithm": "SAC HalfCheetah",
        "network": "256-256", "batch": "256", "framework": "PyTorch CUDA graphs", "value": "0.43",
        "unit": "ms",
    },
)  # fmt: skip


def table(folder: Path) -> Path:
    file = folder / published.FILE
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS, restval="")
        writer.writeheader()
        for line in LINES:
            given = {"sort": "1", "role": "direct", "gpu": CARD, "source": f"some/{line['id']} x"}
            writer.writerow({**given, **line})
    return file


def test_figures_are_predicted_in_si_units_and_the_silent_ones_say_why(tmp_path: Path) -> None:
    points = {p.name: p for p in read(table(tmp_path))}
    assert list(points) == ["A1", "A2", "A3", "A4", "A6"]  # watts are another benchmark's
    assert points["A1"].origin == "some/A1"
    assert isinstance(predicted(points["A4"]), str)
    for name in ("A1", "A2", "A6"):
        said = predicted(points[name])
        assert not isinstance(said, str)
        assert said(Constants.shipped()) == pytest.approx(points[name].value, rel=0.35)


FOLDER = os.environ.get("PEARL_DATA", "")


@pytest.mark.skipif(
    not (FOLDER and (Path(FOLDER) / "published" / published.FILE).is_file()),
    reason="PEARL_DATA names no folder with published figures",
)
def test_no_published_bound_is_broken_by_the_shipped_constants() -> None:
    part = published.run(True, Path(FOLDER))
    broken = next(bar for bar in part.bars if "one-sided" in bar.what)
    assert broken.met, broken.measured
