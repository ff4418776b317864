"""A policy has a small file of its own, which is read without the run's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as encode
from typer.testing import CliRunner

import pearl
from pearl.cli import app
from pearl.errors import SpecError
from pearl.training.policy import FILES, Policy
from pearl.training.trainer import CHECKPOINT, Trainer
from pearl_devices.kernels.interface import STATISTICS
from tests.damage import trainer_of
from tests.lanes import cut, planned, replay_spec
from tests.schemas.test_schemas import problems


def normalised() -> Trainer:
    spec = replay_spec("dqn", {"max_lanes": 1}, normalise={"observations": True})
    return Trainer(*planned(spec), seed=3)


@pytest.mark.parametrize("case", ["normalised", "ppo", "sac", "sarsa"])
def test_the_best_and_the_last_policy_come_back_as_they_were(case: str, tmp_path: Path):
    trainer = normalised() if case == "normalised" else trainer_of(case)
    trainer.train(steps=160, out=tmp_path)
    env = trainer.system.env
    obs = np.arange(16) if case == "sarsa" else np.random.default_rng(0).normal(size=(64, env.obs))
    for path in (tmp_path, *(tmp_path / name for name in FILES.values())):
        policy = pearl.Policy.load(path)
        np.testing.assert_array_equal(policy.act(obs), trainer.policy.act(obs))
        assert (policy.statistics is not None) == (case == "normalised")
        assert policy.system.raw == trainer.system.raw
    assert max((tmp_path / name).stat().st_size for name in FILES.values()) < 40_000


def test_eval_and_export_read_the_policy_and_not_the_replay(tmp_path: Path):
    trainer_of("ppo").train(steps=160, out=tmp_path)
    (tmp_path / CHECKPOINT).unlink()
    policy = Policy.load(tmp_path / FILES["last"])
    policy.parameters[:] = 0.0
    policy.save(tmp_path / FILES["last"], which="last")
    for which in FILES:
        asked = ["--episodes", "2", "--policy", which, "--json", "-"]
        ran = CliRunner().invoke(app, ["eval", str(tmp_path), *asked])
        assert ran.exit_code == 0, ran.stderr
        found = json.loads(ran.stdout)
        assert found["policy"] == which
        assert problems(found, "eval") == []
        asked = [str(tmp_path), str(tmp_path / which), "--policy", which]
        ran = CliRunner().invoke(app, ["export", *asked])
        assert ran.exit_code == 0, ran.stderr
    assert (tmp_path / "best").read_bytes() != (tmp_path / "last").read_bytes()


def test_until_one_is_evaluated_the_best_policy_is_the_last(tmp_path: Path):
    trainer = trainer_of("dqn")
    first = trainer.policy.parameters
    cut(trainer, 240, steps=480, out=tmp_path)
    for path in (*FILES.values(), CHECKPOINT):
        read = Policy.load if path != CHECKPOINT else lambda p: Trainer.load(p).policy
        assert not np.array_equal(read(tmp_path / path).parameters, first)


def test_the_best_policy_stays_and_the_last_one_follows(tmp_path: Path):
    trainer = trainer_of("dqn")
    trainer.train(steps=160)
    trainer.session.mark_best()
    best = trainer.policy.parameters
    trainer.session.arrays[trainer.session.compiled.policy] += 1
    trainer.session.state.best_mean = 9.0
    trainer.session.save_run(tmp_path)
    np.testing.assert_array_equal(Policy.load(tmp_path).parameters, best)
    np.testing.assert_array_equal(Policy.load(tmp_path / FILES["last"]).parameters, best + 1)


def test_copies_of_a_policy_have_its_statistics_too():
    session = normalised().session
    parameters, statistics = (session.arrays[n] for n in ("policy.q", STATISTICS))

    def move(value: float) -> None:
        parameters[:], statistics[:] = value, value + 0.5

    def held(policy: Policy) -> tuple[set[float], set[float]]:
        assert policy.statistics is not None
        return set(policy.parameters.tolist()), set(policy.statistics.ravel().tolist())

    move(1)
    assert not session.best_is_last()
    assert session.copy_for_evaluation().keys() == {"judged.policy", "judged.normalise"}
    move(2)
    session.mark_best()
    assert held(session.policy("best")) == held(session.policy("last")) == ({2}, {2.5})
    assert session.best_is_last()
    statistics[0, 0] = 9
    assert not session.best_is_last()
    move(3)
    assert held(session.evaluated_policy) == ({1}, {1.5})
    session.mark_evaluated_best()
    assert (held(session.policy("best")), held(session.policy("last"))) == (
        ({1}, {1.5}), ({3}, {3.5})
    )  # fmt: skip


def test_what_is_no_policy_is_a_sentence(tmp_path: Path):
    trainer = trainer_of("ppo")
    trainer.policy.save(tmp_path / "sound")
    with pytest.raises(SpecError, match="none: there is no policy here; `pearl train` writes"):
        Policy.load(tmp_path / "none")
    (tmp_path / "cut").write_bytes((tmp_path / "sound").read_bytes()[:-9])
    (tmp_path / "deep").write_bytes(encode({}, metadata={"pearl": "[" * 100_000}))
    for name in ("cut", "deep"):
        with pytest.raises(SpecError, match=f"{name}: not a readable policy"):
            Policy.load(tmp_path / name)
    trainer.export(tmp_path / "exported")
    trainer.save(tmp_path / "checkpoint")
    for name in ("exported", "checkpoint"):
        with pytest.raises(SpecError, match=f"{name}: not a policy file"):
            Policy.load(tmp_path / name)
    trainer.policy.save(tmp_path / "later")
    data = (tmp_path / "later").read_bytes().replace(b'\\"format\\": 1', b'\\"format\\": 3')
    (tmp_path / "later").write_bytes(data)
    with pytest.raises(SpecError, match=r"format 3, written by pearl .* reads formats 1 and 2"):
        Policy.load(tmp_path / "later")
    small = trainer.policy
    small.parameters = small.parameters[:-1]
    small.save(tmp_path / "small")
    with pytest.raises(SpecError, match=r"small: holds .*; a policy of its spec has"):
        Policy.load(tmp_path / "small")
