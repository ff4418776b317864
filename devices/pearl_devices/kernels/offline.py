"""Tabular learning from a log of transitions: a sweep over all chunks, and the average of their
tables.

Sizes: states, actions, obs (1), act (0), batch (transitions of a sweep), chunks, bits (behind the
point of a table of int32; 0: float32), order (0 SEQ, 1 STR, 2 RAN; `primitives.updates.offline`).
"""

from __future__ import annotations

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.counting import F32
from pearl_devices.kernels.record import KernelKind, Spec, Work, primitive
from pearl_devices.kernels.tabular import CHOOSE

ROW_BYTES = 24
"""A transition: five numbers of 4 bytes and a flag, in whole words of 8 bytes."""
ACCESSES = 0.7
"""Accesses of an update that wait for the one before, at the 8 ns of `pearl_estimators.roofline`.
An update took 5.4 ns with a table of 16 by 4 on a core of an AMD EPYC (Zen 5), 2026-11-25."""
EXAMPLE = {"states": 6, "actions": 3, "obs": 1, "act": 0, "chunks": 2, "bits": 0, "order": 0}


def table_bytes(k: Kernel) -> int:
    """Bytes of the table of one chunk."""
    return F32 * k.dim("states") * k.dim("actions")


def _sweep_work(k: Kernel) -> Work:
    # For each transition the row ahead is compared and one entry moved: about 6 operations.
    rows, choices = k.dim("batch"), k.dim("actions")
    read = ROW_BYTES + F32 * (choices + 1)
    return float(rows * (choices + 6)), float(rows * read), float(F32 * rows), 0.0


def _average_work(k: Kernel) -> Work:
    moved = float(k.dim("chunks") * table_bytes(k))
    return moved / F32, moved, moved, 0.0


def _tables(k: Kernel) -> dict[str, Spec]:
    sizes = k.dim("states"), k.dim("actions")
    number = "int32" if k.dim("bits") else "float32"
    return {"learner.tables": ((k.dim("chunks"), *sizes), number)}


def _sweep_arrays(k: Kernel) -> dict[str, Spec]:
    rows = (k.dim("batch"),)
    whole = ("state", "action", "next_state", "next_action")
    return {
        **_tables(k),
        **{f"log.{name}": (rows, "int32") for name in whole},
        "log.reward": (rows, "int32" if k.dim("bits") else "float32"),
        "log.terminated": (rows, "uint8"),
        "hyper.lr.q": ((1,), "float64"),
        "hyper.discount": ((1,), "float64"),
        "learner.step": ((1,), "int64"),
        "loss.q": ((1,), "float64"),
        "rng.update": ((2,), "uint64"),
    }


def _average_arrays(k: Kernel) -> dict[str, Spec]:
    return {**_tables(k), "policy.q": ((k.dim("states"), k.dim("actions")), "float64")}


def _acting(k: Kernel) -> Kernel:
    sizes = {name: k.dim(name) for name in ("states", "actions", "obs", "act")}
    return CHOOSE.kernel({"envs": 1, **sizes})


def _accesses(k: Kernel) -> float:
    return ACCESSES * k.dim("batch")


def _sweep(name: str) -> KernelKind:
    return KernelKind(
        name=f"offline.{name}",
        structure="sweep",
        count=_sweep_work,
        arrays=_sweep_arrays,
        writes=("learner.", "loss.q", "rng.update"),
        variants={"native": primitive(f"updates.offline:bind_{name}")},
        accesses=_accesses,
        example_sizes=EXAMPLE,
    )


Q_LEARNING, SARSA = _sweep("q_learning"), _sweep("sarsa")
AVERAGE = KernelKind(
    name="offline.average",
    structure="average",
    count=_average_work,
    arrays=_average_arrays,
    writes=("learner.tables", "policy.q"),
    variants={"native": primitive("updates.offline:bind_average")},
    policy=_acting,
    example_sizes=EXAMPLE,
)
