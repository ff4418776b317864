"""PPO and A2C as whole systems: plans, options, training."""

from __future__ import annotations

import math
from types import SimpleNamespace as Given
from typing import Any

import pytest
import torch

import pearl
from pearl.algorithms import a2c, algorithm, ppo
from pearl.errors import SpecError
from pearl.planning.plans import Plan


def spec(name: str, env: str = "CartPole-v1", **options: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"epochs": 2, "minibatches": 2} if name == "ppo" else {}
    given = {"num_envs": 4, "rollout_steps": 8, "hidden": [16, 16], **own, **options}
    train = {"steps": 640, "evaluate_every": 0, "final_episodes": 1, "checkpoint_every": 320}
    return {"algorithm": {"name": name, "env": env, **given}, "train": train}


def plan_with(given: dict[str, Any], **variants: str) -> Plan:
    limits = {task: [variant] for task, variant in variants.items()}
    return pearl.plan(pearl.load(given, set={"limits.variants": limits}))


@pytest.mark.parametrize("platform", ["cpu_gpu", "cpu_h200", "cpu_gpu_fpga"])
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_every_platform_has_a_plan(name: str, platform: str) -> None:
    system = pearl.load(spec(name), set={"platform": platform})
    found = pearl.plan(system)
    assert found.status == "optimal"
    large = {"platform": platform, "algorithm.hidden": [2048, 2048], "algorithm.num_envs": 512}
    moved = pearl.plan(pearl.load(spec(name), set=large))
    assert moved.task("learn").device != system.platform.host
    outside = {**large, "limits": {"variants": {"step": ["gymnasium"]}}}
    apart = pearl.plan(pearl.load(spec(name), set=outside))
    assert apart.task("learn").device != system.platform.host
    assert apart.task("step").device == system.platform.host


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_options_of_a_replay_are_refused(name: str) -> None:
    own = algorithm(name).Options.__pydantic_fields__
    others = algorithm("dqn").Options.__pydantic_fields__.keys() - own.keys()
    assert len(others) > 5
    for key in others:
        with pytest.raises(SpecError, match=rf"algorithm.{key}: a key of algorithm dqn"):
            pearl.load(spec(name), set={f"algorithm.{key}": 1})


@pytest.mark.parametrize(("name", "env"), [("a2c", "Pendulum-v1"), ("ppo", "CartPole-v1")])
def test_torch_and_gymnasium_train_too(name: str, env: str) -> None:
    """No longer run: each of the two in the environment of the other one."""
    given = spec(name, env)
    torch = dict.fromkeys(("act", "store", "advantages", "learn"), "torch")
    plan = plan_with(given, step="gymnasium", **torch)
    assert {plan.task(t).variant for t in (*torch, "step")} == {"torch", "gymnasium"}
    system = pearl.load(given, set={"limits.variants": {}})
    run = pearl.compile(system, plan=plan).train()
    assert run.status == "done"
    assert run.updates == 20 * (4 if name == "ppo" else 1)


def test_a_spec_that_normalises_trains_without_fused_calls() -> None:
    given = spec("ppo", "Pendulum-v1", normalise={"observations": True, "rewards": True})
    trainer = pearl.compile(given)
    assert trainer.graph.fusions == ()
    assert trainer.train().status == "done"


LOGITS = [[0.5, -0.5], [1.0, 2.0], [0.0, 0.25], [-1.0, 1.0], [0.75, 0.0]]
ACTIONS, WORTH = [0, 1, 1, 0, 1], [2.0, -1.0, 0.5, -3.0, 1.5]
RATIOS = [0.5, 0.5, 1.5, 1.5, 1.125]
"""Of the likelihoods of the actions, beyond both bounds with gains and losses, and within."""
VALUES, BEFORE = [1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 2.5, 3.0, 6.0, 5.25]
RETURNS = [3.0, 2.0, 3.0, 2.0, 9.0]


def minibatch() -> Any:
    logits = torch.tensor(LOGITS, dtype=torch.float64)
    action = torch.tensor(ACTIONS)
    density = torch.log_softmax(logits, 1).gather(1, action[:, None])[:, 0]
    double = {"advantage": WORTH, "returns": RETURNS, "value": BEFORE}
    rows = {n: torch.tensor(v, dtype=torch.float64) for n, v in double.items()}
    rows["log_prob"] = density - torch.tensor(RATIOS, dtype=torch.float64).log()
    return Given(obs=logits, action=action, **rows)


NETS: Any = Given(actor=lambda obs: obs, critic=lambda obs: torch.tensor(VALUES).double())


@pytest.mark.parametrize(("clip", "value_clip"), [(0.25, 0.5), (0.25, 0.0), (0.0, 0.5)])
def test_the_loss_of_a_minibatch_is_that_of_the_paper_row_by_row(clip, value_clip):
    hyper = Given(clip=clip, value_clip=value_clip, entropy=0.125, value_weight=0.25,
                  normalise=False)  # fmt: skip
    ((networks, (actor, critic)),) = list(ppo.losses(NETS, minibatch(), hyper))
    gains, entropies, errors = [], [], []
    for logits, ratio, worth, value, before, wanted in zip(
        LOGITS, RATIOS, WORTH, VALUES, BEFORE, RETURNS, strict=True
    ):
        held = min(max(ratio, 1 - clip), 1 + clip) if clip else ratio
        gains.append(min(ratio * worth, held * worth))
        shares = [math.exp(x) / sum(map(math.exp, logits)) for x in logits]
        entropies.append(-sum(p * math.log(p) for p in shares))
        near = before + min(max(value - before, -value_clip), value_clip) if value_clip else value
        errors.append(max((value - wanted) ** 2, (near - wanted) ** 2))
    assert networks == ("actor", "critic")
    expected = -sum(gains) / 5 - 0.125 * sum(entropies) / 5
    assert float(actor) == pytest.approx(expected, rel=1e-9)
    assert float(critic) == pytest.approx(0.25 * sum(errors) / 5, rel=1e-9)
    ((_, (actor, critic)),) = list(a2c.losses(NETS, minibatch(), hyper))
    densities = [math.log(math.exp(x[a]) / sum(map(math.exp, x)))
                 for x, a in zip(LOGITS, ACTIONS, strict=True)]  # fmt: skip
    gain = sum(w * d for w, d in zip(WORTH, densities, strict=True)) / 5
    assert float(actor) == pytest.approx(-gain - 0.125 * sum(entropies) / 5, rel=1e-9)
    squares = [(v - r) ** 2 for v, r in zip(VALUES, RETURNS, strict=True)]
    assert float(critic) == pytest.approx(0.25 * sum(squares) / 5, rel=1e-9)


def test_gradient_steps_end_above_one_and_a_half_times_the_divergence() -> None:
    moved = sum(r - 1 - math.log(r) for r in RATIOS) / 5
    for target, ends in ((moved / 1.5 * 0.999, True), (moved / 1.5 * 1.001, False), (0.0, False)):
        hyper = Given(clip=0.25, value_clip=0.0, entropy=0.0, value_weight=1.0, normalise=False,
                      target_kl=target)  # fmt: skip
        found = list(ppo.losses(NETS, minibatch(), hyper))
        assert (found == [None], len(found)) == (ends, 1)
