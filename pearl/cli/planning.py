"""Commands that plan: `plan`, `pareto`, and `verify`, which checks a plan."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pearl.cli.application import DONE, FAILED, SCHEMA, UNCERTIFIED, Result, command
from pearl.cli.arguments import Html, Json, Keys, Set, Spec, Verbose, load_spec, warn_of_measuring
from pearl.errors import SpecError
from pearl.seeds import SEEDS

if TYPE_CHECKING:
    from pearl.report.document import Page


class Objective(StrEnum):
    """The objective of a plan, as in a spec."""

    throughput = auto()
    power_efficiency = auto()
    makespan = auto()
    robust = auto()
    robust_worst = auto()


@command
def plan(
    spec: Spec,
    keys: Keys = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(metavar="OTHER.json", help="Show the plan next to these plans."),
    ] = None,
    objective: Annotated[
        Objective | None, typer.Option(help="Objective to optimise; overrides the spec.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Solver method of `pearl list methods`, or a module path of yours."
        ),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(min=0.0, help="Time limit of the solver, in seconds.")
    ] = 20.0,
    seed: Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Seed of the solver.")] = 0,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Explain the bottleneck and which changes would improve the plan."
        ),
    ] = False,
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            help="Prove the bound again for `pearl verify`, for as long as the time limit.",
        ),
    ] = False,
    runner_ups: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --explain: write the near-optimal plans to this folder."
        ),
    ] = None,
    verbose: Verbose = False,
    set: Set = None,
    html_file: Html = None,
    json_file: Json = None,
) -> Result:
    """Plan where each task runs, and predict throughput and power."""
    from pearl.planner.planner import pareto as make_front
    from pearl.planner.planner import plan as make_plan
    from pearl.planning.certificate_files import save_beside
    from pearl.planning.plans import load_plan
    from pearl.report.compare import SideBySide, side_of_plan
    from pearl.report.html import today
    from pearl.report.report import Report
    from pearl.report.terminal import terminal_width

    if runner_ups is not None and not explain:
        raise SpecError(
            f"--runner-ups {runner_ups}: add --explain, which finds the near-optimal plans"
        )
    others = [(file.stem, load_plan(file)) for file in compare or ()]
    override = [f"objective={objective.value}"] if objective else []
    system = load_spec(spec, [*(keys or ()), *(set or ()), *override])
    warn_of_measuring(system)
    result = make_plan(system, method=method, time_limit_s=time_limit, seed=seed)
    if certify:
        from pearl.solvers.certificate import certify as certified

        result = certified(result, seconds=time_limit)
    explanation = None
    if explain:
        from pearl import explain as explained

        explanation = explained(result)
    report = Report(result, None, system, explanation=explanation)
    text = report.text(terminal_width(), verbose=verbose)
    value = report.to_json()
    if explanation is not None and runner_ups is not None:
        runner_ups.mkdir(parents=True, exist_ok=True)
        for n, close in enumerate(explanation.runner_ups.plans, 1):
            close.plan.save(runner_ups / f"plan-{n}.json")
        text += f"\n\n{len(explanation.runner_ups.plans)} near-optimal plans: {runner_ups}"
    if others:
        sides = [side_of_plan(system.name, result), *(side_of_plan(*pair) for pair in others)]
        beside = SideBySide(tuple(sides))
        value = {**value, "compare": beside.to_json()["sides"]}
        return Result(str(beside), value, page=lambda: beside.page(today()))

    def page() -> Page:
        """Return the page; with --explain and for throughput, it also shows the front of power."""
        drawn = explain and result.objective == "throughput"
        front = make_front(system, time_limit_s=time_limit) if drawn else ()
        return replace(report, front=front).page(today())

    save = partial(save_beside, result, json_file or "-")
    return Result(text, value, after=None if json_file in (None, "-") else save, page=page)


@command
def verify(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A plan, as `pearl plan --json PLAN` writes it.")
    ],
    spec: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Check against this spec, with its costs estimated here and now, instead of the "
            "graph, costs and limits in the plan's file.",
        ),
    ] = None,
    json_file: Json = None,
) -> Result:
    """Check a plan, and the proof of its bound, with a program that shares no code with the
    solvers. Exit status: 0 certified; 1 refused; 3 valid, but not certified."""
    from pearl.planning.plans import load_plan
    from pearl.planning.problem_files import problem_from_json
    from pearl.report.bands_text import certified_text
    from pearl.verification import RefusedError
    from pearl.verification import verify as verified

    made = load_plan(plan)
    if spec is not None:
        from pearl.planner.planner import build_problem, lane_overhead, with_lanes

        problem = build_problem(load_spec(spec, None))
        single = sum(k.width > 0 for k in made.lanes) == 1 and lane_overhead(problem.spec)
        problem = with_lanes(problem, 1 if single else problem.limits.max_lanes)
    elif made.certificate is None:
        raise SpecError(
            f"{plan}: it holds no graph, costs and limits to check it against; make it with "
            "`pearl plan --certify --json`, or give its spec with --spec"
        )
    else:
        problem = problem_from_json(made.certificate.get("problem"), f"{plan}: certificate")
    value: dict[str, object] = {"schema": SCHEMA}
    try:
        found = verified(
            made, problem.graph, problem.costs, problem.limits, objective=made.objective
        )
    except RefusedError as error:
        return Result(
            f"refused: {error}", value | {"verified": "refused", "row": error.row}, FAILED
        )
    says = f"{certified_text(made)}, for the stated costs" if made.certified else "not certified"
    words = f"valid: every rule and limit is kept; {says}"
    value |= {"verified": made.certified, "cost": found.cost, "bound": found.bound}
    return Result(words, value | {"gap": found.gap}, DONE if made.certified else UNCERTIFIED)


@command
def pareto(
    spec: Spec,
    keys: Keys = None,
    gap: Annotated[
        float, typer.Option(min=0.0, help="Largest relative gap between neighbours.")
    ] = 0.01,
    time_limit: Annotated[
        float, typer.Option(min=0.0, help="Time limit of the solver, in seconds.")
    ] = 60.0,
    set: Set = None,
    html_file: Html = None,
    json_file: Json = None,
) -> Result:
    """Compute the throughput–power Pareto front."""
    from pearl.planner.planner import pareto
    from pearl.report.front_page import front_page
    from pearl.report.html import today
    from pearl.report.terminal import page_text

    system = load_spec(spec, [*(keys or ()), *(set or ())])
    warn_of_measuring(system)
    plans = pareto(system, gap=gap, time_limit_s=time_limit)
    number = {id(p): n for n, p in enumerate(plans)}
    value = {
        "schema": SCHEMA,
        "plans": [p.to_json() for p in plans],
        "assignments": [[number[id(p)] for p in row.plans] for row in plans.assignments],
        "open_w": [list(ends) for ends in plans.open_w],
    }
    text = page_text(front_page(plans, system.name))
    return Result(text, value, page=lambda: front_page(plans, system.name, today()))
