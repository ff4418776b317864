"""HiGHS in a separate process (Huangfu and Hall 2018), and the messages to and from it.

`python highs.py` reads a `LinearProgram` from standard input, writes an `LpSolution` to standard
output, and repeats. The process ends when its standard input is closed, also during a solve.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
import time
import traceback
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
LpMethod = Literal["choose", "ipm", "pdlp"]
Status = Literal["optimal", "infeasible", "stopped"]

_METHODS: tuple[LpMethod, ...] = ("choose", "ipm", "pdlp")
_STATUS: tuple[Status, ...] = ("optimal", "infeasible", "stopped")

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
        values = vars(self) | {"method": _METHODS.index(self.method)}
        return save({name: np.asarray(value) for name, value in values.items()})

    @classmethod
    def from_bytes(cls, message: bytes) -> LinearProgram:
        values: dict[str, Any] = load(message)
        numbers = {"until": float(values["until"]), "gap": float(values["gap"])}
        return cls(**values | numbers | {"method": _METHODS[int(values["method"])]})


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
        values = vars(self) | {"status": _STATUS.index(self.status)}
        return save({name: np.asarray(v) for name, v in values.items() if v is not None})

    @classmethod
    def from_bytes(cls, message: bytes) -> LpSolution:
        values: dict[str, Any] = {"x": None, **load(message)}
        numbers = {"value": float(values["value"]), "bound": float(values["bound"])}
        return cls(**values | numbers | {"status": _STATUS[int(values["status"])]})


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


SIZE = struct.Struct("<q")
"""The length of a message."""


def write_message(file: IO[bytes], message: bytes) -> None:
    """Write a message to a file without a buffer."""
    left = memoryview(SIZE.pack(len(message)) + message)
    while left:
        left = left[file.write(left) :]


def read_message(file: IO[bytes]) -> bytes | None:
    """Return the next message of a file without a buffer; None if the other end has closed."""
    head = _read(file, SIZE.size)
    return _read(file, SIZE.unpack(head)[0]) if head else None


def _read(file: IO[bytes], size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        if not (more := file.read(size - len(found))):
            return None
        found += more
    return bytes(found)


def main() -> None:
    programs, answers = os.fdopen(0, "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)  # HiGHS may print; standard output carries answers alone
    requests: queue.Queue[bytes] = queue.Queue(1)

    def work() -> None:
        try:
            while True:
                answer = solve(LinearProgram.from_bytes(requests.get()))
                write_message(answers, answer.to_bytes())
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=work, daemon=True).start()
    while (message := read_message(programs)) is not None:
        requests.put(message)
    os._exit(0)  # the parent ended or closed the pipe


if __name__ == "__main__":
    main()
