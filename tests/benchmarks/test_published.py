"""The published figures: how they are read, predicted and held out, on lines of a made-up table."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bars import AbsentError
from benchmarks.estimators import published
from benchmarks.estimators.published_assumed import ASSUMED, Point, completed
from benchmarks.estimators.published_points import RETYPED, TUNED, Constants, predicted, read

COLUMNS = (
    "id", "sort", "what", "algorithm", "network", "batch", "envs", "gpu", "cpu", "precision",
    "framework", "value", "unit", "counts", "role", "source", "read",
)  # fmt: skip
CARD = "NVIDIA GeForce RTX 4090"
ON_M4 = next(p for p in read(RETYPED) if p.name == "N01")
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


def test_a_bound_that_is_broken_and_a_source_that_is_left_out_change_what_is_said(
    tmp_path: Path,
) -> None:
    told: list[tuple[Point, published.Said]] = []
    for point in read(table(tmp_path)):
        said = predicted(point)
        if not isinstance(said, str):
            told.append((point, said))
    shipped = Constants.shipped()
    bounded = next(p for p, _ in told if p.name == "A3")
    assert published.broken(bounded, 1.2) > 0 == published.broken(bounded, 0.9)
    with_it = published.fitted(told, shipped).rates.wide_share
    left = published.without(told, "some/A1", shipped).rates.wide_share
    assert abs(with_it - 0.56) < abs(left - 0.56)
    assert "K26" in TUNED


def rate(name: str, per_s: float) -> Point:
    """A rate of SAC whose source leaves the networks open."""
    return replace(
        ON_M4, name=name, what="env steps a second", algorithm="SAC", network="not stated",
        batch="", envs="16", gpu=CARD, cpu="AMD Ryzen 5 9600X", framework="stable-baselines3",
        value=per_s, unit="1/s", counts="", role="above",
    )  # fmt: skip


def test_what_is_assumed_completes_a_figure_and_two_rates_give_a_gradient_step() -> None:
    points = {p.name: p for p in completed([rate("L71", 800.0), rate("L72", 400.0)])}
    assert points["L71"].network == "256-256"
    step = points["L72-L71"]
    assert step.value == pytest.approx((16 / 400 - 16 / 800) / 12)
    assert step.role == "direct"
    bare = predicted(rate("X", 800.0))
    assert bare == "network and batch not stated, and no default of its library is known here"
    said, of_step = predicted(points["L72"]), predicted(step)
    assert not isinstance(said, str)
    assert not isinstance(of_step, str)
    shipped = Constants.shipped()
    assert said(shipped) < 1 / of_step(shipped)  # a loop takes longer than its gradient step
    slower = replace(shipped, gradient_s=2 * shipped.gradient_s)
    assert said(slower) < said(shipped)
    assert {"L71", "L72"} <= set(ASSUMED)


def test_a_gradient_step_alone_takes_no_longer_than_a_whole_loop_took() -> None:
    (point,) = completed([replace(rate("L72", 333.0), gpu="NVIDIA RTX 4070 Ti Super")])
    said = predicted(point)
    assert not isinstance(said, str)
    assert published.broken(point, said(Constants.shipped()) / point.value) == 0
    before = replace(Constants.shipped(), gradient_s=20.9e-6)
    assert published.broken(point, said(before) / point.value) > 0


def test_of_a_range_the_nearest_to_the_figure_is_taken() -> None:
    def off(seconds: float) -> float:
        said = predicted(replace(ON_M4, value=seconds))
        assert not isinstance(said, str)
        return said(Constants.shipped()) / seconds

    assert off(1e-6) > 100 > 0.01 > off(1.0)
    ends = off(1e-6) * 1e-6, off(1.0)
    assert ends[0] < ends[1]
    assert off(sum(ends) / 2) == 1.0
    assert all(not isinstance(predicted(p), str) for p in read(RETYPED))


def test_without_the_table_the_benchmark_says_that_it_is_absent(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match=r"no published\.csv in"):
        published.run(True, tmp_path)


FOLDER = os.environ.get("PEARL_DATA", "")


@pytest.mark.skipif(
    not (FOLDER and (Path(FOLDER) / "published" / published.FILE).is_file()),
    reason="PEARL_DATA names no folder with published figures",
)
def test_no_published_bound_is_broken_by_the_shipped_constants() -> None:
    part = published.run(True, Path(FOLDER))
    broken = next(bar for bar in part.bars if "one-sided" in bar.what)
    assert broken.met, broken.measured
