"""Contracts: tests that every extension must pass, as classes to inherit. They need pytest.

A device kind, for example:

    from pearl.testing import BackendContract, EstimatorContract
    from pearl_devices import Device, kernel

    class TestNpu(BackendContract, EstimatorContract):
        device = Device("npu", "npu", width=64, width_unit="pe")
        kernels = (kernel("inference.dqn", envs=8, obs=4, act=0, q=(4, 16, 2)),)
        rung = "closed_form"
"""

import pytest

pytest.register_assert_rewrite(
    "pearl.testing.algorithm_contract",
    "pearl.testing.backend_contract",
    "pearl.testing.estimator_contract",
    "pearl.testing.kernel_kind_contract",
    "pearl.testing.limit_contract",
    "pearl.testing.solver_contract",
)

from pearl.testing.algorithm_contract import AlgorithmContract  # noqa: E402
from pearl.testing.backend_contract import BackendContract  # noqa: E402
from pearl.testing.estimator_contract import EstimatorContract  # noqa: E402
from pearl.testing.kernel_kind_contract import KernelKindContract  # noqa: E402
from pearl.testing.limit_contract import LimitContract  # noqa: E402
from pearl.testing.solver_contract import SolverContract  # noqa: E402

__all__ = [
    "AlgorithmContract",
    "BackendContract",
    "EstimatorContract",
    "KernelKindContract",
    "LimitContract",
    "SolverContract",
]
