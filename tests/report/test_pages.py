"""Pages: what stands on the first screen, that every form tells the same numbers, and that figures
are true to the plan."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path

import pytest
from typer.testing import CliRunner

import pearl
from pearl.advice import Advice
from pearl.advice.case import Finding
from pearl.cli import app
from pearl.formatting import count, si
from pearl.planner.energy_front import Front
from pearl.planning.plans import Bottleneck, Plan, load_plan
from pearl.planning.runs import load_run
from pearl.population.results import Sweep
from pearl.population.setting_results import SettingResult, SweepRun
from pearl.report.compare import SideBySide, side_of_plan
from pearl.report.front_page import front_page
from pearl.report.html import page_html
from pearl.report.report import Report
from pearl.report.schedule import schedule_of
from pearl.spec.checks import read_shipped
from tests.examples import example_run, recorded, two_device_plan

EVIL = '<script>alert("x")</script>'
JARGON = r"\b(firings?|lanes?|tokens?|slack|period|rung)\b|\w\+\w|\w_\w"
"""Words that stand in Details alone; and names of fused calls and of tasks in a spec."""

LINES, COLUMNS = 40, 80


@cache
def planned(name: str) -> Plan:
    return pearl.plan(name)


def body(page: str) -> str:
    """The text of a page above its details and without its style, title and commands."""
    inside = re.sub(r"<style>.*?</style>|<title>.*?</title>|<code>.*?</code>", "", page, flags=re.S)
    inside = inside.partition("<h2>Details</h2>")[0]
    return unescape(re.sub(r"<[^>]*>", " ", inside))


@pytest.mark.parametrize("name", sorted(read_shipped()))
def test_the_short_report_of_every_shipped_spec_fits_a_screen(name: str) -> None:
    if name == "ppo_halfcheetah":
        pytest.importorskip("mujoco")
    report = Report(planned(name), None, pearl.load(name))
    lines = report.text(COLUMNS).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert sum(set(line.strip()) == {"─"} for line in lines) == 1, "one table, not split"
    assert any(line.startswith("  what you get") for line in lines[1:3]), "the result comes first"
    page = page_html(report.page())
    assert len(page.encode()) <= 500_000
    found = re.findall(JARGON, body(page).replace(name, "").replace("policy_best", ""))
    assert found == []


@pytest.fixture(scope="module", params=["dqn_cartpole", "q_learning_frozenlake"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    pearl.compile(request.param).train(steps=4_000, out=out)
    return out


def test_a_run_says_the_same_numbers_in_every_form(trained: Path) -> None:
    """Terminal, long terminal, HTML, JSON and CSV."""
    run = load_run(trained)
    stored = json.loads((trained / "run.json").read_text())
    ran = CliRunner().invoke(app, ["report", str(trained)], env={"COLUMNS": str(COLUMNS)})
    short = ran.stdout
    assert ran.exit_code == 0
    assert len(short.splitlines()) <= LINES
    assert max(map(len, short.splitlines())) <= max(COLUMNS, 12 + len(str(trained)))
    report = Report(run.plan, run, pearl.load(trained / "spec.yaml"))
    long = report.text(200, verbose=True)
    page = unescape(re.sub(r"<[^>]*>", " ", (trained / "report.html").read_text()))
    forms = (" ".join(short.split()), " ".join(long.split()), " ".join(page.split()))
    with (trained / "metrics.csv").open() as lines:
        *_, last = csv.DictReader(lines)
    assert float(last["env_steps"]) == stored["env_steps"]
    numbers = [
        count(stored["env_steps_per_s"]),
        count(stored["predicted_env_steps_per_s"]),
        count(stored["returns"]["eval_mean"]),
        count(float(last["mean_return_20"])),
    ]
    for t in stored["tasks"]:
        if "+" not in t["task"] and t["measured_s"]:
            numbers += [si(t["predicted_s"], "s"), si(t["measured_s"], "s")]
    assert len(numbers) > 6
    for number in numbers:
        assert all(number in form for form in forms), number
    assert str(trained) in short, "the folder"
    lanes = [si(k["wall_s"], "s") for k in stored["lanes"]]
    for k in stored["lanes"]:
        for c in (c for c in k["calls"] if "+" not in c["call"]):
            lanes += [si(c[part], "s") for part in ("busy_s", "python_s", "waiting_s") if c[part]]
    assert stored["lanes"]
    for number in lanes:
        assert all(number in form for form in forms[1:]), number


def test_calls_of_a_schedule_follow_each_other_and_wait_for_their_inputs() -> None:
    plan = planned("dqn_cartpole_gpu")
    assert plan.problem is not None
    found = schedule_of(plan, plan.problem.costs.platform)
    assert found is not None
    small = 1e-9
    for lane in plan.lanes:
        if lane.width:
            calls = [e for e in found.events if e.lane == lane.lane]
            busy = sum(e.end_s - e.start_s for e in calls)
            assert busy == pytest.approx(lane.load * plan.period_s)
            starts = sorted((e.start_s % plan.period_s, e.end_s - e.start_s) for e in calls)
            again = (starts[0][0] + plan.period_s, 0.0)
            for (start, takes), (after, _) in zip(starts, [*starts[1:], again], strict=True):
                assert after >= start + takes - small
    one = {e.task: e for e in found.events if not e.to}
    sent = {e.task: e for e in found.events if e.to}
    step, act = one["step"], one["act"]
    lag = (step.start_s - sent["act"].end_s) / plan.period_s
    assert lag == pytest.approx(round(lag), abs=1e-6), "the step starts when its message arrives"
    late = sent["act"].start_s - act.start_s - plan.task("act").seconds
    assert late % plan.period_s == pytest.approx(0.0, abs=1e-9)


def evil_plan() -> Plan:
    plan = two_device_plan()
    tasks = tuple(replace(t, task=t.task + EVIL, device=EVIL, variant=EVIL) for t in plan.tasks)
    lanes = tuple(
        replace(k, lane=EVIL + k.lane, device=EVIL,
                order=tuple(replace(e, task=e.task + EVIL) for e in k.order))
        for k in plan.lanes
    )  # fmt: skip
    edges = tuple(replace(e, src=EVIL, link=EVIL) for e in plan.edges)
    return replace(
        plan, host=EVIL, method=EVIL, tasks=tasks, lanes=lanes, edges=edges,
        bottleneck=Bottleneck("cycle", EVIL, (EVIL,)), pearl_version=EVIL, note=EVIL,
    )  # fmt: skip


def evil_sweep() -> Sweep:
    runs = tuple(
        SweepRun(f"{EVIL}{n}", EVIL, n, {EVIL: EVIL}, 9, status=status, eval_mean=1.0 + n,
                 env_steps=9, env_steps_per_s=1.0, wall_s=1.0, cpu_s=1.0, message=EVIL)
        for n, status in enumerate(("done", "failed"))
    )  # fmt: skip
    curve = ((1.0, 0.5, 0.2, 0.7), (9.0, 1.0, 0.9, 1.1))
    setting = SettingResult(EVIL, {EVIL: EVIL}, 2, 1, 9, 1.0, 0.9, 1.1, curve)
    return Sweep("done", "sweep", EVIL, {EVIL: "0"}, (0, 1), {EVIL: (EVIL,)}, {}, {}, EVIL,
                 {EVIL: EVIL}, (setting,), runs, (), (), 1.0, EVIL)  # fmt: skip


def evil_advice() -> Advice:
    finding = Finding(EVIL, f"It does not matter: {EVIL}", EVIL, 0.5, {"loss": [0.1, 0.2]})
    return Advice(evil_plan(), (finding,), 200, 0, (EVIL,), 1.0, (EVIL,))


def test_a_script_in_a_name_is_inert_on_every_page() -> None:
    plan = evil_plan()
    sides = SideBySide((side_of_plan(EVIL, plan), side_of_plan("b", two_device_plan())))
    forms = [
        plan._repr_html_(),
        Front([plan])._repr_html_(),
        page_html(front_page([plan], EVIL)),
        sides._repr_html_(),
        page_html(sides.page()),
        example_run(plan)._repr_html_(),
        page_html(Report(plan, example_run(plan, **recorded(plan))).page()),
        *(shown for each in (evil_sweep(), evil_advice())
          for shown in (each._repr_html_(), page_html(each.page()))),
    ]  # fmt: skip
    for form in forms:
        assert "<script" not in form
        assert "&lt;script&gt;" in form


def test_objects_show_themselves_in_a_notebook_within_a_bound(tmp_path: Path) -> None:
    plan = planned("dqn_cartpole_gpu")
    kept = example_run(two_device_plan(), **recorded(two_device_plan()))
    advice = replace(evil_advice(), plan=plan)
    for shown in (plan, Report(plan), Front([plan]), kept, evil_sweep(), advice):
        cell = shown._repr_html_()
        assert "<html" not in cell
        assert "<footer" not in cell
        assert 5_000 < len(cell) < 120_000
        assert "<h1>" in cell
        assert 'class="pearl cell"' in cell
    plan.save(tmp_path / "plan.html")
    assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")
    plan.save(tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json").value == plan.value
    Front([plan]).save(tmp_path / "front.html")
    with pytest.raises(pearl.SpecError, match=r"the suffix must be \.html"):
        Front([plan]).save(tmp_path / "front.json")


def test_the_schedule_of_a_plan_alone_is_that_of_its_graph_and_costs() -> None:
    """Pages of runs from folders have no graph and costs: the plan and its links are enough."""
    plan = planned("dqn_cartpole_gpu")
    assert plan.problem is not None
    found = schedule_of(load_plan(plan.to_json()), plan.problem.costs.platform)
    assert found is not None
    period = plan.period_s

    def phases(pairs: list[tuple[str, float]]) -> list[tuple[str, float]]:
        first = next(start for task, start in pairs if task == "store")
        moved = [(task, round((start - first) / period % 1.0, 6) % 1.0) for task, start in pairs]
        return sorted(moved)

    exact = [(f.task, f.start_s) for f in plan.schedule() if ">" not in f.task]
    own = [(e.task, e.start_s) for e in found.events if not e.to]
    for (task, phase), (other, expected) in zip(phases(own), phases(exact), strict=True):
        assert task == other
        assert phase == pytest.approx(expected, abs=1e-5)
