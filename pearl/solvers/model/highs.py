"""HiGHS in a separate process (Huangfu and Hall 2018), and the messages to and from it.

`python highs.py FD` reads a `LinearProgram` from standard input, writes an `LpSolution` to the file
descriptor FD, and repeats. The process ends when its standard input is closed, also during a solve.
"""

from __future__ import annotations

import os
import queue
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
LpMethod = Literal["choose", "ipm", "pdlp"]
Status = Literal["optimal", "infeasible", "stopped"]

_METHODS: tuple[LpMethod, ...] = ("choose", "ipm", "pdlp")
_STATUS: tuple[Status, ...] = ("optimal", "infeasible", "stopped")
_PROGRAM, _SOLVED = struct.Struct("=qqqqdd"), struct.Struct("=qddqq")

STEPS = 3_000
"""Largest number of iterations of pdlp. For 1,000 tasks on 16 devices, the dual solution is then
within 0.01 % of the optimum, the primal solution is not."""


@dataclass(frozen=True)
class LinearProgram:
    """Minimise cost · x over lower ≤ x ≤ upper and low ≤ A x ≤ high.

    A: by rows; the entries of row i are `first[i]` to `first[i + 1]` of `column` and `values`.
    integer: 1 if x is an integer, else 0.
    until: time limit of HiGHS, `time.monotonic()` seconds.
    gap: relative difference of value and bound at which an integer program counts as solved.
    method: HiGHS' solver of a program without integers; pdlp makes at most STEPS iterations.
    """

    cost: Floats
    lower: Floats
    upper: Floats
    low: Floats
    high: Floats
    values: Floats
    integer: Ints
    first: Ints
    column: Ints
    until: float
    gap: float
    method: LpMethod

    def to_bytes(self) -> bytes:
        sizes = len(self.cost), len(self.low), len(self.values)
        header = _PROGRAM.pack(*sizes, _METHODS.index(self.method), self.until, self.gap)
        floats = self.cost, self.lower, self.upper, self.low, self.high, self.values
        arrays: list[Floats | Ints] = [*floats, self.integer, self.first, self.column]
        return b"".join([header, *(a.tobytes() for a in arrays)])

    @classmethod
    def from_bytes(cls, message: bytes) -> LinearProgram:
        columns, rows, entries, method, until, gap = _PROGRAM.unpack_from(message)
        at = _PROGRAM.size

        def floats(count: int) -> Floats:
            nonlocal at
            at += 8 * count
            return np.frombuffer(message, np.float64, count, at - 8 * count)

        def ints(count: int) -> Ints:
            nonlocal at
            at += 4 * count
            return np.frombuffer(message, np.int32, count, at - 4 * count)

        return cls(
            cost=floats(columns),
            lower=floats(columns),
            upper=floats(columns),
            low=floats(rows),
            high=floats(rows),
            values=floats(entries),
            integer=ints(columns),
            first=ints(rows + 1),
            column=ints(entries),
            until=until,
            gap=gap,
            method=_METHODS[method],
        )


@dataclass(frozen=True)
class LpSolution:
    """The answer of HiGHS.

    value: cost of x.
    bound: no solution costs less.
    x: the best solution found, or None.
    dual: a multiplier of each row of a program without integers, or None. If the solver was
        stopped, the multipliers are only an approximation.
    """

    status: Status
    value: float
    bound: float
    x: Floats | None
    dual: Floats | None = None

    def to_bytes(self) -> bytes:
        none = np.empty(0)
        x, dual = (none if a is None else a for a in (self.x, self.dual))
        header = _SOLVED.pack(_STATUS.index(self.status), self.value, self.bound, len(x), len(dual))
        return header + x.tobytes() + dual.tobytes()

    @classmethod
    def from_bytes(cls, message: bytes) -> LpSolution:
        status, value, bound, columns, rows = _SOLVED.unpack_from(message)
        x = np.frombuffer(message, np.float64, columns, _SOLVED.size)
        dual = np.frombuffer(message, np.float64, rows, _SOLVED.size + 8 * columns)
        return cls(_STATUS[status], value, bound, x if columns else None, dual if rows else None)


def solve(p: LinearProgram) -> LpSolution:
    import highspy

    h = highspy.Highs()  # type: ignore[no-untyped-call]
    h.setOptionValue("output_flag", False)
    h.setOptionValue("solver", p.method)
    h.setOptionValue("mip_rel_gap", p.gap)
    h.setOptionValue("pdlp_iteration_limit", STEPS)
    h.setOptionValue("threads", 1)
    taken = h.passModel(
        len(p.cost),
        len(p.low),
        len(p.values),
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        p.cost,
        p.lower,
        p.upper,
        p.low,
        p.high,
        p.first,
        p.column,
        p.values,
        p.integer,
    )
    if taken == highspy.HighsStatus.kError:
        raise ValueError("HiGHS rejects the program; a coefficient may not be finite")
    h.setOptionValue("time_limit", max(p.until - time.monotonic(), 0.01))
    h.run()
    statuses: dict[highspy.HighsModelStatus, Status] = {
        highspy.HighsModelStatus.kOptimal: "optimal",
        highspy.HighsModelStatus.kInfeasible: "infeasible",
    }
    info = h.getInfo()
    value, solution = info.objective_function_value, h.getSolution()
    dual = np.array(solution.row_dual) if solution.dual_valid else np.empty(0)
    return LpSolution(
        statuses.get(h.getModelStatus(), "stopped"),
        value,
        info.mip_dual_bound if p.integer.any() else value,
        np.array(solution.col_value)
        if info.primal_solution_status == int(highspy.SolutionStatus.kSolutionStatusFeasible)
        else None,
        dual if len(dual) == len(p.low) and not p.integer.any() else None,
    )


def main() -> None:
    programs, answers = Connection(0, writable=False), Connection(int(sys.argv[1]), readable=False)
    requests: queue.Queue[bytes] = queue.Queue(1)

    def work() -> None:
        try:
            while True:
                answers.send_bytes(solve(LinearProgram.from_bytes(requests.get())).to_bytes())
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=work, daemon=True).start()
    try:
        while True:
            requests.put(programs.recv_bytes())
    except EOFError:  # the parent ended or closed the pipe
        os._exit(0)


if __name__ == "__main__":
    main()
