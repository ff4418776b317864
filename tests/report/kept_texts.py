"""Texts and drawings that the package prints of plans, runs and figures made by hand.

They are kept in `tests/report/texts`, so that a change of any of them is seen:
`python -m tests.report.kept_texts` writes them anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from typing import get_type_hints

from pearl.cli import app, listing
from pearl.cli import text as cli_text
from pearl.cluster.links import MeasuredLink
from pearl.cluster.timing import TimedMessage
from pearl.planner.energy_front import Front
from pearl.planning.plans import CLOSED
from pearl.planning.runs import Run
from pearl.report.front_page import front_page
from pearl.report.html import page_html
from pearl.report.report import Report
from pearl_estimators.gpu.calibration import GpuCalibration, OperatorFit
from pearl_estimators.gpu.variants import Copies, Starts
from pearl_estimators.host.calibration import Calibration, HeldOutTiming
from pearl_estimators.host.linear_fit import Fit
from pearl_estimators.host.probe import CpuProbe
from tests.advice.kept_advice import all_advised
from tests.examples import example_run, recorded, two_device_plan
from tests.explanation.kept_explanations import all_explained
from tests.report.kept_drawings import DRAWINGS, all_drawn, trace
from tests.report.kept_pages import BOTH, FOLDER, PAGES, bare, first, listed, news, said, words
from tests.report.kept_sweeps import SWEEPS
from tests.report.kept_values import FIGURES, figures_text


def curve() -> tuple[dict[str, float], ...]:
    steps = ((i, i // 9) for i in range(1, 61))
    return tuple(
        {"env_steps": 500.0 * i, "mean_return_20": i * (5 - i / 40),
         "eval_mean": 6.0 * n, "eval_low": 4.0 * n, "eval_high": 7.0 * n} for i, n in steps
    )  # fmt: skip


def kept_run() -> Run:
    return example_run(**recorded(two_device_plan()))


def front() -> str:
    plan = two_device_plan()
    paced = replace(plan, power_w=80.0, value=7_300.0, pace_s=1.1e-3, status="optimal")
    shared = replace(plan.tasks[1], shares=(5, 3), replica=1)
    split = replace(plan, power_w=0.0, tasks=(plan.tasks[0], shared, *plan.tasks[2:]))
    assert plan.bands
    frugal = replace(paced, value=9_000.0, tasks=plan.tasks[::-1], pace_s=None)
    missed = replace(plan, bands=replace(plan.bands, missed=7))
    variant = replace(plan.tasks[0], variant="torch")
    other = replace(paced, tasks=(variant, *plan.tasks[1:]), value=15_000.0, power_w=150.0)
    lanes = replace(plan, power_w=155.0, tasks=(replace(plan.tasks[0], lane="x"), *plan.tasks[1:]))
    closed = replace(missed, tasks=tuple(replace(t, rung=CLOSED) for t in plan.tasks))
    open_w = [(80.0, 90.0), (100.0, 110.0), (120.0, 130.0), (140.0, 150.0)]
    fronts = (
        [plan, paced], [split], [frugal, missed], [paced, other, lanes, plan], [closed, paced],
        Front([plan, paced], open_w), Front([plan], open_w[:3]),
    )  # fmt: skip
    pages = [(str(n), words(front_page(plans))) for n, plans in enumerate(fronts)]
    return listed(news(pages, *map(first, BOTH)))


def calibrated() -> str:
    fits = (
        Fit("update.dqn", "native", {"call": 1e-6}, 0.27, 0.034, 40, (1e3, 1e6), (1e3, 1e6)),
        Fit("env_step CartPole-v1", "torch", {"call": 2e-6}, 0.1, 0.126, 8, (1e3, 1e6), (1e3, 1e6)),
    )
    more = {"skipped": {"update.sac native-pair": "two cores are needed"}}
    beside = {"update.dqn": {"inference.dqn": 0.125, "update.dqn": 0.5}}
    found = Calibration(
        {"cpu": "x"}, {"numpy": "2"}, "2026-01-02T03:04:05Z", 31.4, 0.5, 1.2, fits,
        **more, beside=beside, doubts={"update.dqn native": 1.84},
    )  # fmt: skip
    quiet = replace(found, contention=1.05, beside={}, skipped={}, doubts={})
    return "\n\n".join(cli_text.calibration_text(f, "c.json") for f in (found, quiet))


def operators() -> str:
    fit = OperatorFit(
        "linear", 132, 4.5e-6, 6.1e13, 7.2e11, 128, ((1.0, 2.0),), (0.1,), (2.0, 3.0), 0.05, 0.02,
        0.1, 0.04, 0.062, 31, (1.0, 1.0), (9.0, 9.0),
    )  # fmt: skip
    plain = replace(fit, operator="softmax", places=(), weights=(), error=0.1, points=30)
    found = GpuCalibration("H100", "by hand", "", (fit, plain))
    vague = replace(plain, unidentified=("overhead_s", "bytes_per_s"))
    copies = Copies(8e-6, 1.2e10, 1.3e10)
    timed = replace(found, fits=(vague,), starts=Starts(launch_s=2e-6), copies=copies)
    return "\n\n".join(cli_text.gpu_calibration_text(c, "g.json") for c in (found, timed))


def hosts() -> str:
    """What is measured of hosts and their links, and what a device runs."""
    products = {"16": 1e9, "64": 1e10, "256": 5e10, "1024": 8e10}
    probe = CpuProbe(3.75e-6, 1.5e-5, products, 4e10, 2e10, None, "timed")
    messages = (TimedMessage(8, 5e-5, 1e-5, 1.25), TimedMessage(9_999, 1e-3, 1e-3, 2.0))
    link = MeasuredLink("a", "b", ("1", "2"), "tcp", "", 5e-5, 1e-5, 1.25e9, 0.04, messages)
    texts = (
        cli_text.probe_text(probe, "p.json"),
        cli_text.probe_text(replace(probe, handoff_s=4e-6), "p.json"),
        cli_text.links_text((link,), "l.json"),
        cli_text.links_text((), "l.json"),
        cli_text.variants_text("gpu0", {"update": ("eager", "graph"), "env_step": ("cuda",)}),
    )
    return "\n\n".join(texts)


def checks() -> str:
    rows = (
        HeldOutTiming("update.dqn batch 64", "native", 31e-6, 33e-6, 25e-6, 40e-6),
        HeldOutTiming("inference.dqn envs 8", "torch", 12e-6, 20e-6, 10e-6, 15e-6),
    )
    return cli_text.checks_text(rows)


def lists() -> str:
    found = {
        "platforms": [p for p in listing.platforms() if p["name"] != "host"],
        "devices": [d for d in listing.devices() if not d["name"].startswith("host/")],
    }
    return json.dumps(found, indent=1)


def options() -> str:
    """Every argument and option of every command, with its default and its bounds."""
    lines = []
    for registered in app.registered_commands:
        assert registered.callback
        lines.append(f"{registered.name}:")
        hints = get_type_hints(registered.callback, include_extras=True)
        for name, p in signature(registered.callback).parameters.items():
            (info,) = hints[name].__metadata__
            bounds = f"{info.min} to {info.max}"
            default = "required" if p.default is p.empty else repr(p.default)
            lines.append(f"  {name} {' '.join(info.param_decls or ())}: {default}, {bounds}")
    return "\n".join(lines) + "\n"


def platforms() -> str:
    found = [p for name, p in listing.machines().items() if name != "host"]
    return "\n\n".join(map(cli_text.platform_text, found))


TEXTS: dict[str, Callable[[], str]] = {
    "run.txt": lambda: Report(two_device_plan(), kept_run()).text(100, verbose=True),
    "run.html": lambda: bare(
        page_html(Report(two_device_plan(), kept_run(), metrics=curve()).page())
    ),
    "front.txt": front,
    "calibration.txt": calibrated,
    "operators.txt": operators,
    "checks.txt": checks,
    "hosts.txt": hosts,
    "lists.json": lists,
    "options.txt": options,
    "commands.txt": lambda: str(import_module("tests.cli.kept_commands").all_ran()),
    "platforms.txt": platforms,
    **{name: (lambda name=name: listed(said(name))) for name in PAGES},
    **{name: partial(all_drawn, name) for name in DRAWINGS},
    "trace.txt": trace,
    **SWEEPS,
    "explanations.txt": all_explained,
    "advice.txt": all_advised,
}


COLUMNS = "100"
"""Characters a line of the terminal, as its environment says it."""


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    os.environ["COLUMNS"] = COLUMNS
    for name, made in TEXTS.items():
        (FOLDER / name).write_text(made(), encoding="utf-8")
    for name in FIGURES:
        (FOLDER / name).write_text(figures_text(name), encoding="utf-8")


if __name__ == "__main__":
    main()
