"""Every sentence and row about a simulated device says so, whatever command prints it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from html import unescape

import pytest
from typer.testing import CliRunner

import pearl
from pearl.advice import advise
from pearl.cli import app
from pearl.explanation import explain
from pearl.explanation.sections import blocks
from pearl.formatting import marked
from pearl.planning.plans import Plan, load_plan
from pearl.planning.runs import Run
from pearl.report.document import Facts, Table
from pearl.report.html import page_html
from pearl.report.report import Report
from pearl.report.tables import assignment, plan_facts

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
        ("pearl plan limits.pin.learn=fpga", "pearl plan limits.pin.learn=fpga"),
        ("the simulated fpga idles", "the simulated fpga idles"),
        ("learn>fpga × 8", "learn>fpga (simulated) × 8"),
        ("devices are ['cpu', 'fpga']", "devices are ['cpu', 'fpga' (simulated)]"),
        ("fpga's clock", "fpga (simulated)'s clock"),
    ],
)
def test_the_first_mention_in_a_sentence_is_marked(text: str, said: str) -> None:
    assert marked(text, ["fpga"]) == said
    assert marked(said, ["fpga"]) == said
    assert marked(text, []) == text


def test_a_plan_knows_its_simulated_devices_also_from_a_file() -> None:
    assert planned().simulated == ("fpga",)
    assert load_plan(planned().to_json()).simulated == ("fpga",)


@pytest.mark.slow
def test_the_report_and_its_explanation_say_it() -> None:
    plan = planned()
    e = explain(plan, time_limit_s=300.0)
    report = Report(plan, explanation=e)
    shown = [b for d in report.page().details for b in d.blocks]
    facts = [row for b in shown if isinstance(b, Facts) for row in b.rows]
    assert ("simulated", "fpga (simulated): times of a model; no such device is driven") in facts
    assert unmarked(text for _, text in facts) == []
    assert unmarked(told(tuple(b for b in shown if isinstance(b, Table)))) == []
    sentences, *tables = blocks(e, every_change=True)
    assert unmarked(text for row in sentences.rows for text in row) == []
    assert unmarked(told(tuple(tables))) == []
    assert any("fpga (simulated)" in text for text in told(tuple(tables)))
    assert "fpga (simulated)" in page_html(report.page())


def test_an_error_of_training_says_it() -> None:
    with pytest.raises(pearl.SpecError, match=r"the plan uses cpu, fpga \(simulated\) of"):
        pearl.compile(SPEC)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("emulated") / "run"
    return pearl.compile(SPEC, emulate=True).train(steps=1200, out=out)


def test_a_simulated_runs_report_says_it(emulated: Run) -> None:
    report = Report(emulated.plan, emulated)
    assert unmarked(told(tuple(b for b in report.page().blocks if isinstance(b, Table)))) == []
    assert "FPGA (simulated)" in str(report)
    assert "fpga (simulated)" in report.text(100, verbose=True)


def drawn(text: str) -> list[str]:
    """The words of a page or drawing, element by element: labels, hints, cells and sentences."""
    inside = re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    rows = re.sub(r"</t[dh]>\s*<t[dh][^>]*>", " | ", inside)
    return [unescape(" ".join(part.split())) for part in re.split("<[^>]*>", rows)]


def test_drawings_say_it_of_its_lanes_and_of_each_call_on_them(emulated: Run) -> None:
    words = drawn(page_html(Report(emulated.plan, emulated).page()))
    assert "FPGA (simulated)" in words, "the label of its lane"
    assert any("cpu-fpga (simulated)" in w for w in words)
    assert any(re.match(r"FPGA \(simulated\): [\w ]+: ", w) for w in words), "a call's hint"
    found = unmarked(w for w in words if not w.startswith(("PEARL ", "fpga: times of a model")))
    assert found == []


COMMANDS = {
    "plan": ("plan", SPEC, "--time-limit", "300"),
    "pareto": ("pareto", SPEC, "--gap", "0.3", "--time-limit", "300"),
    "check": ("check", SPEC),
    "report": ("report", "RUN"),
    "eval": ("eval", "RUN"),
    "train": ("train", SPEC),
    "list platforms": ("list", "platforms"),
    "list devices": ("list", "devices"),
    "list kinds": ("list", "kinds"),
    "no mode": ("plan", SPEC, "limits.pin.step=fpga"),
    "no common device": ("plan", SPEC, "limits.together=[[learn, step]]",
                         "limits.pin.learn=fpga", "limits.pin.step=cpu"),
}  # fmt: skip
"""What is typed; RUN stands for the folder of an emulated run."""


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_gives_a_verdict_about_it_without_the_word(
    name: str, emulated: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")  # a row or sentence on a line
    words = [str(emulated.out) if w == "RUN" else w for w in COMMANDS[name]]
    result = CliRunner().invoke(app, words)
    said = result.stdout + result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code == {"train": 2, "no mode": 1, "no common device": 1}.get(name, 0), said
    assert unmarked(line for line in said.splitlines() if not line.startswith("PEARL ")) == []
    assert name == "eval" or "simulated" in said


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


def test_a_plan_by_closed_forms_has_a_range_that_is_assumed_and_no_band() -> None:
    plan = planned()
    facts = dict(plan_facts(plan))
    assert "90 % bands" not in facts
    assert "no probability" in facts["range"]
    place = {row[0]: row[6] for row in assignment(plan).rows}
    assert place["learn"].startswith("assumed ")
    real = replace(plan, tasks=tuple(replace(t, rung="datasheet") for t in plan.tasks))
    assert "90 % bands" in dict(plan_facts(real))
