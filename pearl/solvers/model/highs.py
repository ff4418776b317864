"""Linear programs in HiGHS (Huangfu and Hall 2018), each in a thread that can be stopped."""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LpMethod = Literal["choose", "ipm", "pdlp", "simplex"]

STEPS = 3_000
"""Largest number of iterations of pdlp. For 1,000 tasks on 16 devices, the dual solution is then
within 0.01 % of the optimum, the primal solution is not."""

GRACE_S = 0.5
"""Seconds that a solve may exceed its time before it is stopped."""

ENDING_S = 5.0
"""Longest wait in seconds, at the end of the process, for solves that were stopped. Presolve and
pdlp notice a stop late (seen: 0.6 s for 14,000 rows)."""

_going = set[threading.Event]()
"""The end of each solve that runs."""

LONG_S = 3600.0
"""Longest single wait in seconds: system calls accept no infinite time."""


@dataclass(frozen=True)
class LinearProgram:
    """Minimise cost · x over lower ≤ x ≤ upper and low ≤ matrix x ≤ high.

    matrix: scipy's sparse rows.
    integer: 1 if x is an integer, else 0.
    until: time limit of HiGHS, `time.monotonic()` seconds.
    gap: relative difference of value and bound at which an integer program counts as solved.
    method: HiGHS' solver of a program without integers; pdlp makes at most STEPS iterations.
    """

    matrix: Any
    cost: Floats
    lower: Floats
    upper: Floats
    low: Floats
    high: Floats
    integer: NDArray[np.int32]
    until: float
    gap: float
    method: LpMethod


@dataclass(frozen=True)
class LpSolution:
    """The answer of HiGHS.

    value: cost of x.
    bound: no solution costs less.
    x: the best solution found, or None.
    dual: a multiplier of each row of a program without integers, or None. If the solver was
        stopped, the multipliers are only an approximation.
    """

    status: Literal["optimal", "infeasible", "stopped"]
    value: float
    bound: float
    x: Floats | None
    dual: Floats | None = None


def load(p: LinearProgram) -> Any:
    """Return HiGHS with a program, for one thread and without output.

    Raises:
        ValueError: HiGHS rejects the program.
    """
    import highspy
    from highspy._core import _Highs

    h = _Highs()  # highspy.Highs prints a line on standard output
    options: dict[str, Any] = {"output_flag": False, "solver": p.method, "mip_rel_gap": p.gap}
    options |= {"pdlp_iteration_limit": STEPS, "threads": 1}
    for name, value in options.items():
        h.setOptionValue(name, value)
    taken = h.passModel(
        len(p.cost),
        len(p.low),
        len(p.matrix.data),
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        p.cost,
        p.lower,
        p.upper,
        p.low,
        p.high,
        p.matrix.indptr.astype(np.int32),
        p.matrix.indices.astype(np.int32),
        p.matrix.data.astype(np.float64),
        p.integer,
    )
    if taken == highspy.HighsStatus.kError:
        raise ValueError("HiGHS rejects the program; a coefficient may not be finite")
    return h


def solve(p: LinearProgram) -> LpSolution | None:
    """Return the answer of HiGHS; None if it does not stop in time.

    It is stopped `GRACE_S` after its time, and by an exception in this thread, also
    KeyboardInterrupt.
    """
    from highspy._core import cb

    h, stopped = load(p), threading.Event()

    def look(kind: object, text: str, told: object, answer: Any, data: object) -> None:
        if stopped.is_set():
            answer.user_interrupt = True

    h.setCallback(look, None)
    for name in ("Mip", "Simplex", "Ipm"):
        h.startCallback(getattr(cb.HighsCallbackType, f"kCallback{name}Interrupt"))
    return _solution(h, p) if _ended(h, p.until, stopped) else None


def _ended(h: Any, until: float, stopped: threading.Event) -> bool:
    """Run HiGHS; return whether it ended."""
    ended, failed = threading.Event(), list[BaseException]()
    _going.add(ended)

    def run() -> None:
        try:
            h.run()
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()
            _going.discard(ended)

    h.setOptionValue("time_limit", max(until - time.monotonic(), 0.01))
    threading.Thread(target=run, daemon=True, name="HiGHS").start()
    try:
        while not ended.wait(min(max(0.0, until - time.monotonic()) + GRACE_S, LONG_S)):
            if time.monotonic() >= until + GRACE_S:
                break
    finally:
        stopped.set()
        ended.wait(GRACE_S)
    if failed:
        raise failed[0]
    return ended.is_set()


@atexit.register
def _wait_for_solves() -> None:
    """Wait for solves that still run, and keep those that run on from aborting the process.

    Before Python 3.14, a thread that returns to an interpreter at its end is unwound, also through
    C++ that forbids it. C++ then aborts the process. Here such a thread sleeps instead.
    """
    until = time.monotonic() + ENDING_S
    for ended in tuple(_going):
        ended.wait(max(0.0, until - time.monotonic()))
    if _going and sys.platform == "linux":
        pause = ctypes.CDLL(None).pause
        ctypes.CDLL("libstdc++.so.6")["_ZSt13set_terminatePFvvE"](pause)  # std::set_terminate


def _solution(h: Any, p: LinearProgram) -> LpSolution:
    import highspy

    statuses: dict[Any, Any] = {
        highspy.HighsModelStatus.kOptimal: "optimal",
        highspy.HighsModelStatus.kInfeasible: "infeasible",
    }
    info, solution = h.getInfo(), h.getSolution()
    found = info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
    dual = np.array(solution.row_dual) if solution.dual_valid else np.empty(0)
    whole, value = bool(p.integer.any()), float(info.objective_function_value)
    return LpSolution(
        statuses.get(h.getModelStatus(), "stopped"),
        value,
        info.mip_dual_bound if whole else value,
        np.array(solution.col_value) if found else None,
        dual if len(dual) == len(p.low) and not whole else None,
    )
