"""One training run: a session from its first iteration to its report."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pearl import run_folder
from pearl.planning.runs import Run, Status
from pearl.report.report import Report
from pearl.runtime.protocol import single_lane
from pearl.spec.user_code import UserCodeError, locate_error
from pearl.training import plan_change
from pearl.training.evaluations.evaluator import FinalEvaluations
from pearl.training.loop import checkpoint_error_text, iterate
from pearl.training.outcome import Measurements, build_run
from pearl.training.run_feedback import calibration_feedback, find_contradictions
from pearl.training.training_run import TrainingRun
from pearl_devices import torch_threads
from pearl_devices.base import EnvironmentFailed
from pearl_devices.system import host_system
from pearl_devices.user_imports import error_text
from pearl_estimators.energy import EnergyMeter
from pearl_estimators.host.calibration_updates import mark_doubtful, record_run


@torch_threads.restoring_threads()
def run_training(run: TrainingRun) -> Run:
    """Train to the end, and write the files of the run.

    Raises:
        Exception: the first exception of a callback, once the run has ended.
    """
    compiled = run.session.compiled
    host_system.raise_file_limit()
    host_system.work_for_user()  # lanes in other threads and processes ask for themselves
    with closing(run.evaluator), closing(run.trial):
        measured = Measurements()
        meter = EnergyMeter.of(() if compiled.emulate else compiled.system.platform.devices)
        with meter:
            while (status := _run_session(run, measured)) == "off":
                plan_change.replan(run, measured)
                run.resume_from_checkpoint()
        if run.state.best_mean is None:
            run.session.mark_best()
        status, final = _finish(run, status)
    outcome = _feed_back(run, build_run(run, status, final, measured, meter))
    if run.folder is not None:
        outcome.save(run_folder.clear(run.folder, "run.json"))
        _save_report(run.folder, Report(run.plan, outcome, run.session.compiled.system))
    run.rate, run.phase = outcome.env_steps_per_s or 0.0, "evaluation"
    run.notify("on_end", outcome)
    if run.callbacks.raised is not None:
        raise run.callbacks.raised
    return outcome


def _save_report(folder: Path, report: Report) -> None:
    """Write the page and the trace of a run. The run has ended and is saved, so a file that cannot
    be written, such as on a full disk, is only a warning."""
    try:
        report.save(run_folder.clear(folder, "report.html"))
        report.save_trace(run_folder.clear(folder, "trace.json"))
    except OSError as error:
        warnings.warn(
            f"{error.filename}: {error.strerror}; the run is complete and saved; make room, then "
            f"write its report: pearl report {folder}",
            RuntimeWarning,
            stacklevel=2,
        )


def _run_session(run: TrainingRun, measured: Measurements) -> Status | Literal["off"]:
    """Run the lanes of the present plan until the run ends or `iterate` returns `off`."""
    session, log = run.session, run.state.log
    status: Status | Literal["off"] = "failed"
    with ExitStack() as stack:
        with run.clock.timing("bind"):
            run.lanes = stack.enter_context(run.bind_lanes())
            run.interruption.waits = lambda: run.lanes.env_steps_under_way()
        try:
            with run.timing_loop():
                status = iterate(run)
                session.at = run.state.iteration
                if status == "done":
                    run.drain()
                    session.environments = dict(session.environments()).copy
        except (single_lane.LaneError, EnvironmentFailed) as error:
            log.failure = " ".join(str(error).split())
        except Exception as error:  # code of the user may raise anything
            blame = locate_error(error, session.compiled.system, "a call")
            if blame is None:
                raise
            log.failure, measured.user_code_failed = str(blame), True
    for text in session.notes():
        log.note(text, restarts=0)
    measured.add(run.lanes)
    return status


def _finish(run: TrainingRun, status: Status) -> tuple[Status, FinalEvaluations | None]:
    """Write the last checkpoint of a run that is done, and evaluate its policies."""
    log, unsaved, final = run.state.log, None, None
    if status not in ("done", "stopped"):
        return status, None
    if status == "done" and run.folder is not None:
        try:
            run.save()
        except OSError as error:
            unsaved = checkpoint_error_text(run, error)
    try:
        final = run.interruption.run_interruptibly(run.evaluator.final)
        status = "interrupted" if final is None else status
    except (EnvironmentFailed, UserCodeError) as error:
        status, log.failure = "failed", str(error)
    if unsaved and status == "done":
        status, log.failure = "failed", unsaved
    return status, final


def _feed_back(run: TrainingRun, outcome: Run) -> Run:
    """Correct the calibration of this host by a run; return the run with a sentence about it.

    Only a run of a plan that was made here and now corrects the calibration.
    """
    compiled = run.session.compiled
    if outcome.drift is None or compiled.plan.problem is None:
        return outcome
    plan, graph = compiled.protocol.plan, compiled.protocol.graph
    platform = compiled.system.platform
    try:
        mark_doubtful(find_contradictions(plan, graph, outcome.drift))
        lessons, said = calibration_feedback(plan, graph, platform, outcome.drift, outcome.steady)
        for lesson in lessons:
            record_run(lesson)
    except Exception as error:  # a fit may fail in any way, and the run is complete
        said = (f"Nothing was learned from this run: {error_text(error).rstrip('.')}.",)
    return replace(outcome, drift=replace(outcome.drift, learned=said))
