"""Plans, advice and native training need no torch; what needs torch says so in one sentence."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import pearl
from pearl.algorithms.networks import own_networks
from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.planning.variants import exclusion_reason
from pearl_devices import backend
from pearl_devices.discover import cpu
from pearl_estimators.host.probe import probe
from pearl_estimators.sealed_files import CalibrationError
from tests.devices.test_cpu_backend import dqn_kernels

TRAIN = """
import hashlib, sys
if "without" in sys.argv:
    sys.modules["torch"] = None
import pearl
trainer = pearl.compile("dqn_cartpole", set={
    "algorithm.learning_starts": 64, "train.steps": 256, "train.calibrate_after": False})
trainer.train()
print(hashlib.sha256(trainer.policy.parameters.tobytes()).hexdigest())
"""


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


def test_native_kernels_train_to_the_same_bits_without_torch():
    digests = {
        subprocess.run(
            [sys.executable, "-c", TRAIN, with_or_without], check=True, capture_output=True
        ).stdout
        for with_or_without in ("with", "without")
    }
    assert len(digests) == 1


@pytest.mark.slow
def test_dqn_on_cartpole_reaches_its_return_without_torch():
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['torch'] = None; import pearl; "
         "run = pearl.compile('dqn_cartpole').train(); print(run.returns['eval_mean'])"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert float(ran.stdout) >= 475


def test_a_cpu_without_torch_offers_no_variant_of_torch(no_torch: None):
    update = dqn_kernels()[4]
    with_torch = replace(cpu(), figures={})
    assert {v for v, _ in backend("cpu").offers(update, with_torch)} >= {"native", "torch"}
    assert [v for v, _ in backend("cpu").offers(update, cpu())] == ["native"]
    assert cpu().figures["torch"] == 0


def test_what_needs_torch_names_it_and_the_way_out(no_torch: None):
    way_out = "torch is not installed: pip install torch --index-url https://download.pytorch.org"
    with pytest.raises(SpecError, match=r"algorithm\.network: mine:net needs torch") as refused:
        own_networks("mine:net", 4, (4,), {"q": (4, 2)})
    assert way_out in str(refused.value)
    with pytest.raises(CalibrationError, match="the probe of this host needs torch"):
        probe()
    with pytest.raises(pearl.InfeasibleError, match=r"leave none \(.*torch is not installed\)"):
        pearl.plan(pearl.load("dqn_cartpole", set={"limits.variants.learn": ["torch"]}))


@pytest.mark.parametrize(("variant", "named"), [("torch-bf16", True), ("cuda", False)])
def test_a_refusal_tells_what_a_cpu_lacks_only_where_a_named_variant_needs_it(variant, named):
    lack = "the CPU has no instructions for bfloat16"
    host = replace(cpu(), figures={"bfloat16": 0.0}, sources={"bfloat16": lack})
    learn = Limits(variants={"learn": (variant,)})
    assert (lack in exclusion_reason(("learn",), dqn_kernels()[4], host, learn)) == named
