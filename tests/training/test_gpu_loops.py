"""Whole training loops on the stand-in for a GPU compute what they compute on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from pearl_devices.kernels.arrays import EPISODES
from tests.gpu_lanes import gpu_plan
from tests.lanes import trained

STEPS = 400
ACTING = dict.fromkeys(("act", "step", "sync"), "cuda")
REPLAY = dict.fromkeys(("store", "sample"), "cuda")
ROLLOUT = dict.fromkeys(("store", "advantages"), "cuda")
LOOPS = {"dqn": ACTING | REPLAY, "sac": ACTING | REPLAY, "ppo": ACTING | ROLLOUT}
NEAR = 1e-5
"""Largest difference, as a share of an array's largest number."""


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_in_cuda_learns_what_the_cpu_learns(name: str) -> None:
    on_gpu = trained(*gpu_plan(name, LOOPS[name] | {"learn": "graph"}), "one", steps=STEPS)
    assert on_gpu.run.status == "done", on_gpu.run.message
    assert {t.device for t in on_gpu.plan.tasks} == {"gpu"}
    on_cpu = trained(*gpu_plan(name, {}), "one", steps=STEPS)
    assert {t.device for t in on_cpu.plan.tasks} == {"cpu"}
    found, wanted = on_gpu.session.arrays, on_cpu.session.arrays
    learned = [n for n in wanted if n.startswith(("learner.", "env.", "rng.", "episode."))]
    assert {"rng.inference", "env.state", "episode.count"} < set(learned)
    for array in learned:
        if wanted[array].dtype.kind in "iu":
            assert np.array_equal(found[array], wanted[array]), array
        else:
            off = np.abs(found[array].astype(np.float64) - wanted[array])
            assert off.max() <= NEAR * max(1.0, float(np.abs(wanted[array]).max())), array
    assert wanted["learner.step"][0] > 10
    assert name == "sac" or 0 < wanted["episode.count"][0] < EPISODES
