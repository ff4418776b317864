"""Every sentence and row about a simulated device says so, whatever command prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import pearl
from pearl.advice import advise
from pearl.cli.text import difference_text, front_text, platform_text
from pearl.explanation import explain
from pearl.explanation.sections import section
from pearl.planning.plans import Plan, load_plan
from pearl.report.html import page
from pearl.report.report import Report
from pearl.text_tables import Column, Table, marked

SPEC = "dqn_cartpole_fpga"
NAMES = ("fpga", "agilex_agf014")


@cache
def planned() -> Plan:
    return pearl.plan(SPEC)


def unmarked(texts: Iterator[str]) -> list[str]:
    """The sentences that name the device, or what is bought in thought, and do not say it."""
    found = []
    for text in texts:
        for sentence in re.split(r"(?<=[.?!]) (?=[A-Z])", text):
            named = re.search(rf"(?<![\w.=/])({'|'.join(NAMES)})(?![\w=])", sentence)
            if named and "simulated" not in sentence:
                found.append(sentence)
    return found


def told(tables: tuple[Table, ...]) -> Iterator[str]:
    for table in tables:
        yield table.title
        yield from (" | ".join(row) for row in table.rows)
        yield from table.notes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fpga takes 3 µs.", "fpga (simulated) takes 3 µs."),
        ("Lane fpga.0 waits; fpga idles.", "Lane fpga.0 (simulated) waits; fpga idles."),
        ("On fpga. On cpu. On fpga.", "On fpga (simulated). On cpu. On fpga (simulated)."),
        ("link cpu-fpga twice as fast", "link cpu-fpga (simulated) twice as fast"),
        ("dqn_fpga on cpu_fpga", "dqn_fpga on cpu_fpga"),
        ("pearl plan limits.pin.update=fpga", "pearl plan limits.pin.update=fpga"),
        ("the simulated fpga idles", "the simulated fpga idles"),
        ("update>fpga × 8", "update>fpga (simulated) × 8"),
    ],
)
def test_the_first_mention_in_a_sentence_is_marked(text: str, said: str) -> None:
    assert marked(text, ["fpga"]) == said
    assert marked(said, ["fpga"]) == said
    assert marked(text, []) == text


def test_a_row_is_marked_once() -> None:
    table = Table("On fpga", (Column("a"), Column("b")), (("fpga.0", "fpga"), ("cpu", "x")))
    found = table.marked(["fpga"])
    assert found.title == "On fpga (simulated)"
    assert found.rows == (("fpga.0 (simulated)", "fpga"), ("cpu", "x"))


def test_a_plan_knows_its_simulated_devices_also_from_a_file() -> None:
    assert planned().simulated == ("fpga",)
    assert load_plan(planned().to_json()).simulated == ("fpga",)


def test_the_report_and_its_explanation_say_it() -> None:
    plan = planned()
    e = explain(plan, time_limit_s=3.0)
    report = Report(plan, explanation=e)
    facts = [text for _, text in report.plan_facts()]
    assert ("simulated", "fpga: times of a model; no such hardware is driven") in (
        report.plan_facts()
    )
    assert unmarked(iter([*(f for f in facts if not f.startswith("fpga:"))])) == []
    assert unmarked(told(report.plan_tables())) == []
    assert unmarked(iter([report.bound_sentence()])) == []
    found = section(e, every_change=True)
    assert unmarked(text for _, text in found.sentences) == []
    assert unmarked(told(found.tables)) == []
    assert any("fpga (simulated)" in text for text in told(found.tables))
    assert "fpga (simulated)" in page(report)


def test_the_front_a_difference_and_a_platform_say_it() -> None:
    plan = planned()
    other = replace(plan, tasks=tuple(replace(t, device="cpu", lane="cpu.0") for t in plan.tasks))
    assert "fpga (simulated)" in " ".join(front_text([plan]).split())
    moved = " ".join(difference_text(other, plan).split())
    assert "copy fpga.0 (simulated) on fpga, copy" in moved
    lines = platform_text(pearl.load(SPEC).platform).splitlines()
    assert unmarked(line for line in lines if "fpga" in line) == []


def test_an_error_of_training_says_it() -> None:
    with pytest.raises(pearl.SpecError, match=r"the plan uses cpu, fpga \(simulated\) of"):
        pearl.compile(SPEC)


def test_a_simulated_runs_report_says_it(tmp_path: Path) -> None:
    run = pearl.compile(SPEC, emulate=True).train(steps=1200, out=tmp_path / "run")
    report = Report(run.plan, run)
    assert unmarked(told(report.comparison())) == []
    assert "fpga (simulated)" in str(report)


def test_advice_about_it_has_a_range_over_designs_and_no_percentage() -> None:
    found = advise(
        SPEC, about=["devices", "replay", "buy"], add=["agilex_agf014"], time_limit_s=300
    )
    sentences = [text for v in found.verdicts for text in (v.question, v.answer)]
    assert unmarked(iter(sentences)) == []
    worth = next(v for v in found.verdicts if v.question == "Is fpga (simulated) worth having?")
    assert worth.share is None
    assert worth.answer.startswith("That depends on the design. Env steps/J by design: released ")
    by_design = worth.numbers["by_design"]
    assert list(by_design) == ["systolic", "released"]
    assert by_design["released"] == pytest.approx(worth.numbers["without"])
    assert by_design["systolic"] == pytest.approx(found.plan.value)
    assert f"released {by_design['released']:,.0f} (1.00 x, without using it)" in worth.answer
    about_it = [v for v in found.verdicts if "simulated" in v.question + v.answer]
    assert len(about_it) >= 3
    for v in about_it:
        assert v.share is None
        assert "% of" not in v.answer


def test_how_sure_a_plan_by_closed_forms_is_no_draw_says() -> None:
    system = pearl.load(SPEC, set={"objective": "throughput"})
    (sure,) = advise(system, about=["sure"], time_limit_s=300.0).verdicts
    assert sure.share is None
    assert sure.answer.startswith("No draw says: ")
    assert "systolic" in sure.answer
    assert "released" in sure.answer
    assert "%" not in sure.answer
