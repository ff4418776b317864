"""Tabular algorithms: one table of values, read to choose and written to learn.

Sizes: envs, obs (1), act (0), states, actions.
"""

from __future__ import annotations

from pearl_devices.kernel import Kernel
from pearl_devices.kernels.arrays import actions, step
from pearl_devices.kernels.counting import F32
from pearl_devices.kernels.record import KernelKind, Spec, Work, primitive


def _work(k: Kernel) -> Work:
    # Per environment: one table row read and one entry written; about 10 flops besides the
    # comparisons. Choosing also draws and compares.
    n, choices = k.dim("envs"), k.dim("actions")
    transition = F32 * (2 * k.dim("obs") + 1) + 8 + 2
    return float(n * (choices + 10)), float(n * (8 * choices + transition)), float(24 * n), 0.0


def _table(k: Kernel) -> dict[str, Spec]:
    return {
        "policy.q": ((k.dim("states"), k.dim("actions")), "float64"),
        "explore": ((4,), "float64"),
        **actions(k),
    }


def _choose_arrays(k: Kernel) -> dict[str, Spec]:
    return {
        **_table(k),
        "env.obs": ((k.dim("envs"), k.dim("obs")), "float32"),
        "rng.inference": ((2,), "uint64"),
    }


def _learn_arrays(k: Kernel) -> dict[str, Spec]:
    return {
        **_table(k),
        **step(k),
        "learner.q.visits": ((k.dim("states"), k.dim("actions")), "int64"),
        "learner.step": ((1,), "int64"),
        "hyper.lr.q": ((2,), "float64"),
        "hyper.discount": ((1,), "float64"),
        "batch.td": ((k.dim("envs"),), "float64"),
        "loss.q": ((1,), "float64"),
        "rng.update": ((2,), "uint64"),
        "rng.env_step": ((2,), "uint64"),
    }


def _learning(name: str) -> KernelKind:
    return KernelKind(
        name=f"tabular.{name}",
        structure="table",
        count=_work,
        arrays=_learn_arrays,
        writes=("policy.q", "learner.", "batch.td", "loss.q", "rng.update"),
        variants={"native": primitive(f"updates.tabular:bind_{name}")},
    )


CHOOSE = KernelKind(
    name="tabular.choose",
    structure="table",
    count=_work,
    arrays=_choose_arrays,
    writes=("act.action", "rng.inference"),
    variants={"native": primitive("updates.tabular:bind_choose")},
)
Q_LEARNING, SARSA = _learning("q_learning"), _learning("sarsa")
