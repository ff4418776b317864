"""The report: what it says, that it says it at any width, and that its page is safe and whole."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pearl.errors import SpecError
from pearl.formatting import si
from pearl.planning.metrics_file import load_metrics
from pearl.planning.runs import load_run
from pearl.report.figures.ratios import comparisons
from pearl.report.lead import run_lead
from pearl.report.report import Report
from tests.examples import example_run, two_device_plan

SI = (
    (31.2e-6, "s", "31.2 µs"), (999.96e-6, "s", "1.00 ms"), (1e-9, "s", "1.00 ns"),
    (4500.0, "s", "4,500 s"), (0.0, "J", "0 J"), (2.2261e6, "B", "2.23 MB"), (162.0, "W", "162 W"),
    (-0.25, "J", "-250 mJ"), (3e-13, "s", "0.30 ps"), (99.95, "W", "100 W"), (99.94, "W", "99.9 W"),
    (9.996, "W", "10.0 W"), (1000.0, "W", "1.00 kW"), (1.5e16, "B", "15,000 TB"), (None, "s", "–"),
    (math.inf, "B", "–"),
)  # fmt: skip


def test_si_gives_three_digits_and_a_prefix() -> None:
    for value, unit, text in SI:
        assert si(value, unit) == text


def test_an_energy_without_a_source_cannot_be_built() -> None:
    with pytest.raises(SpecError, match="energy_source is None; set both"):
        example_run(energy_j=3.0, energy_source=None)
    with pytest.raises(SpecError, match=r"energy_source is 'rapl\+'; it is modelled, the name of"):
        example_run(energy_source="rapl+")


class _Page(HTMLParser):
    """Collects tags and attributes; the void ones need no closing."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.open, self.keys = list[str](), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "br", "hr", "img", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.keys += [k for k, _ in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _page(report: Report, folder: Path) -> tuple[str, _Page]:
    report.save(folder / "report.html")
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return text, page


def _curve() -> tuple[dict[str, float], ...]:
    return tuple(
        {"env_steps": 500.0 * i, "mean_return_20": 5.0 * i, "eval_mean": 6.0 * (i // 10)}
        for i in range(1, 101)
    )


def test_the_page_stands_alone_and_is_well_formed(tmp_path: Path) -> None:
    plan = two_device_plan()
    text, page = _page(Report(plan, example_run(plan), metrics=_curve()), tmp_path)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(page.tags)
    fetching = {"src", "href", "xlink:href", "data", "action"}
    assert fetching.isdisjoint(page.keys)
    assert "url(" not in text
    assert "@import" not in text
    drawings = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(drawings) > 3
    for drawing in drawings:
        ElementTree.fromstring(drawing)
    assert "prefers-color-scheme: dark" in text
    assert all(math.isfinite(float(n)) for n in re.findall(r'\bwidth="([^"]*)"', text))


def test_text_is_saved_and_other_suffixes_are_refused(tmp_path: Path) -> None:
    report = Report(two_device_plan())
    report.save(tmp_path / "report.txt")
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == report.text(
        120, verbose=True
    ) + "\n"
    for name in ("report.pdf", "report"):
        with pytest.raises(SpecError, match=r"\.html, \.json, \.txt"):
            report.save(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["report.txt"]


def test_a_run_survives_its_json(tmp_path: Path) -> None:
    run = example_run()
    run.save(tmp_path / "run.json")
    again = load_run(tmp_path)
    assert again.out == str(tmp_path)
    assert again.to_json() == run.to_json()
    assert replace(again, out=None) == run


def test_a_run_with_what_is_unknown_or_not_finite_writes_null(tmp_path: Path) -> None:
    run = example_run(env_steps_per_s=None, updates_per_s=math.nan)
    stored = json.loads(json.dumps(run.to_json(), allow_nan=False))
    assert stored["env_steps_per_s"] is None
    assert stored["updates_per_s"] is None
    assert "– " in Report(run.plan, run).text(120, verbose=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema": 9}', "a run of format 9"),
        ('{"schema": 1}', "steady is None; an object is needed"),
    ],
)
def test_a_damaged_run_is_an_error_naming_the_file(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(SpecError, match=re.escape(str(tmp_path))) as caught:
        load_run(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["status", "wall_s", "tasks", "returns", "simulated", "plan"])
def test_a_run_without_a_key_is_an_error_naming_it(tmp_path: Path, key: str) -> None:
    value = example_run().to_json()
    del value[key]
    (tmp_path / "run.json").write_text(json.dumps(value))
    with pytest.raises(SpecError, match=key):
        load_run(tmp_path)


def test_metrics_leave_out_empty_cells_and_name_bad_ones(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    assert load_metrics(path) == ()
    path.write_text("env_steps,mean_return_20,eval_mean\n8,,\n16,21.5,nan\n")
    assert load_metrics(path) == ({"env_steps": 8.0}, {"env_steps": 16.0, "mean_return_20": 21.5})
    path.write_text("env_steps,mean_return_20\n8,many\n")
    with pytest.raises(SpecError, match=r"metrics\.csv:2: mean_return_20 is 'many'"):
        load_metrics(path)


def test_a_run_without_a_gradient_step_gets_no_advice_about_learning():
    run = example_run(updates=0, env_steps=1000, status="done")
    lead = " ".join(f"{s.answer}{s.reason}" for s in run_lead(run)[1:])
    assert "No gradient step in 1,000 env steps" in lead
    assert "learning_starts" in lead
    assert "faster" not in lead


def test_no_share_of_a_single_iteration_is_above_the_whole():
    run = example_run()
    slow = tuple(replace(t, measured_s=50 * (t.measured_s or 1.0)) for t in run.tasks)
    assert all(r.share <= 1.0 for r in comparisons(replace(run, tasks=slow)))
