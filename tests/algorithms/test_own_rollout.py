"""Algorithms of the user's own that learn from rollouts, by module path: REINFORCE and V-trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pearl
from examples import reinforce, vtrace
from pearl.algorithms.families import rollout
from pearl.errors import SpecError
from pearl_devices import Device, cpu
from tests.lanes import differing, planned, replay_spec, trained

EXAMPLES = {"reinforce": reinforce.SPEC, "vtrace": vtrace.SPEC}
ONE_CPU = {"platform": {"devices": {"cpu": "xeon_gold_6326"}}, "limits": {"max_lanes": 1}}
"""A CPU that is not this host, so that nothing is timed."""


def trainer(name: str, **changes: Any) -> Any:
    return pearl.compile({**EXAMPLES[name], **ONE_CPU}, set=changes, emulate=True, seed=1)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_whole_in_less_than_sixty_lines(name: str) -> None:
    text = (Path(__file__).parents[2] / f"examples/{name}.py").read_text()
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize(("name", "steps"), [("reinforce", 40_000), ("vtrace", 24_000)])
def test_an_example_learns_to_balance_the_pole(name: str, steps: int) -> None:
    """That it does so the same way twice is of its contract."""
    run = trainer(name, **{"train.steps": steps, "train.final_episodes": 5}).train()
    assert run.returns["eval_mean"] >= 150  # random play reaches about 22


def test_it_acts_natively_and_learns_in_torch_with_its_own_loss() -> None:
    made = trainer("vtrace", **{"algorithm.rho": 2.0})
    update = made.graph.task("learn").kernel
    assert update.program == "examples.vtrace:losses"
    assert dict(update.args) == {"rho": 2.0, "c": 1.0, "discount": 0.99}
    assert cpu.offers(update, Device("cpu", "cpu")) == (("torch", 1),)
    assert [f.name for f in made.graph.fusions] == ["rollout"]


def test_without_lag_or_cuts_the_targets_of_v_trace_are_the_returns_of_the_trace_with_decay_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On policy v_s is the sum of rewards, bootstrapped: what gae gives with gae_lambda 1."""
    import torch

    seen = []
    plain = torch.Tensor.square

    def square(error: torch.Tensor) -> torch.Tensor:
        seen.append(error.detach())
        return plain(error)

    made = trainer("vtrace", **{"algorithm.gae_lambda": 1.0, "train.steps": 512})
    monkeypatch.setattr(torch.Tensor, "square", square)
    made.train()
    arrays = made.session.arrays
    # The error of the last rollout, in its first pass: target − value, of the policy that acted.
    first = seen[-made.graph.task("learn").kernel.dim("epochs")].numpy()
    expected = (arrays["rollout.returns"] - arrays["rollout.value"]).reshape(-1)
    np.testing.assert_allclose(first, expected, atol=2e-4)


def test_on_several_lanes_it_computes_what_one_thread_computes() -> None:
    spec = replay_spec("dqn")
    options = {**reinforce.SPEC["algorithm"], "rollout_steps": 8, "num_envs": 4}
    spec |= {"algorithm": options, "limits": {"max_lanes": 3}}
    system, plan = planned(spec, variants=("native", "torch"))
    one, several = (trained(system, plan, lanes, steps=640) for lanes in ("one", "threads"))
    assert differing(one, several) == []


def test_options_of_its_own_are_errors_by_name() -> None:
    with pytest.raises(SpecError, match=r"algorithm\.rho: given -1; allowed: at least 0"):
        trainer("vtrace", **{"algorithm.rho": -1})
    with pytest.raises(SpecError, match=r"algorithm\.rhoo: unknown key \(did you mean rho\?\)"):
        trainer("vtrace", **{"algorithm.rhoo": 1.0})


def test_a_graph_named_as_an_algorithm_that_ships_is_refused() -> None:
    system = pearl.load({**reinforce.SPEC, **ONE_CPU})
    with pytest.raises(SpecError, match="'ppo', whose native kernels would run instead of mine:l"):
        rollout.build(system, "ppo", losses="mine:losses")


FAULTS = {
    "yield 3": "own_rollout.mine:losses yielded 3; it must yield ('actor', 'critic') and a scalar",
    "yield ('actor', 'critic'), (batch.returns, batch.value)": "and a scalar loss of each",
    "return 3": "TypeError: 'int' object is not iterable",
    "raise OSError('no')": "OSError: no (",
}


@pytest.mark.parametrize(("body", "sentence"), FAULTS.items())
def test_a_faulty_loss_is_one_sentence(tmp_path, monkeypatch, body, sentence):
    monkeypatch.syspath_prepend(str(tmp_path))  # type: ignore[no-untyped-call]
    (tmp_path / "own_rollout").mkdir()
    (tmp_path / "own_rollout/__init__.py").touch()
    text = Path(reinforce.__file__).read_text()
    text = text[text.index("import pearl\n") : text.index("def losses")]
    text = text.replace("examples.reinforce", "own_rollout.mine")
    (tmp_path / "own_rollout/mine.py").write_text(
        f"{text}def losses(nets, batch, hyper):\n    {body}\n"
    )
    for name in ("own_rollout", "own_rollout.mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    made = pearl.compile(
        {**EXAMPLES["reinforce"], **ONE_CPU},
        set={"algorithm.name": "own_rollout.mine", "train.steps": 512},
        emulate=True,
    )
    run = made.train()
    assert run.status == "failed"
    assert sentence in run.message
    assert "\n" not in run.message
