"""A run begins with the networks of another run, of a policy, or of a torch state_dict."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import pearl
from pearl.training.trainer import CHECKPOINT
from tests.training.test_trainer import SMALL


@pytest.fixture(scope="module")
def plan():
    return pearl.plan(pearl.load(SMALL))


@pytest.fixture(scope="module")
def source(plan, tmp_path_factory):
    """A trainer that has trained, and its run folder."""
    trainer, folder = pearl.compile(SMALL, plan=plan), tmp_path_factory.mktemp("source")
    trainer.train(out=folder)
    return trainer, folder


class First(pearl.Callback):
    """Keeps the parameters of the beginning and ends the run."""

    def on_progress(self, event):
        self.parameters = event.policy_last.parameters
        return pearl.STOP


def begun(plan, path, **options):
    """The policy with which a run starts (it acts at random at first), and the run."""
    first = First()
    trainer = pearl.compile(SMALL, plan=plan)
    run = trainer.train(start_from=path, callbacks=[first], **options)
    return first.parameters, run, trainer


@pytest.mark.parametrize("what", ["folder", "checkpoint", "policy"])
def test_networks_of_a_run_are_taken_and_it_is_said(what, plan, source, tmp_path):
    trainer, folder = source
    path = {"folder": folder, "checkpoint": folder / CHECKPOINT}.get(
        what, folder / "policy_last.safetensors"
    )
    parameters, run, into = begun(plan, path, out=tmp_path)
    np.testing.assert_array_equal(parameters, trainer.policy_last.parameters)
    target = into.session.arrays["learner.q.target"]
    theirs = trainer.session.arrays["learner.q.target" if what != "policy" else "learner.q"]
    np.testing.assert_array_equal(target, theirs)
    assert into.session.arrays["learner.q.steps"][0] == 0
    assert any("started from" in event and "learner.q" in event for event in run.events)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_state_dict_is_taken_by_its_layers(suffix, plan, source, tmp_path):
    trainer, _ = source
    tensors, file = trainer.policy_last.state_dict(), tmp_path / f"own{suffix}"
    mine = {f"net.{4 * int(n.split('.')[0]) + 2}.{n.split('.')[1]}": t for n, t in tensors.items()}
    save_file(mine, file) if suffix == ".safetensors" else torch.save(mine, file)
    parameters, _, _ = begun(plan, file)
    np.testing.assert_array_equal(parameters, trainer.policy_last.parameters)


def test_each_mismatch_is_a_sentence_and_no_pickle_is_run(plan, source, tmp_path):
    trainer, folder = source
    wide = pearl.compile(SMALL, set={"algorithm.hidden": [8, 8]})
    with pytest.raises(pearl.SpecError, match=r"learner.q is float32\[\d+\]; this spec has"):
        wide.train(start_from=folder)
    file = tmp_path / "wrong.safetensors"
    tensors = trainer.policy_last.state_dict()
    save_file({**tensors, "0.weight": torch.zeros(3, 3)}, file)
    with pytest.raises(pearl.SpecError, match=r"0\.weight is \[3, 3\]; network q needs"):
        begun(plan, file)
    save_file({"0.weight": tensors["0.weight"]}, file)
    with pytest.raises(pearl.SpecError, match="1 layers"):
        begun(plan, file)
    table = pearl.compile("q_learning_frozenlake", set={"platform": "cpu_gpu"}, emulate=True)
    with pytest.raises(pearl.SpecError, match="fits only networks of dense layers"):
        table.train(start_from=file)
    file.write_bytes(b"rubbish")
    with pytest.raises(pearl.SpecError, match=r"start_from: .*wrong\.safetensors: not readable: "):
        begun(plan, file)
    code = b"cos\nsystem\n(S'touch " + bytes(tmp_path / "ran") + b"'\ntR."
    (tmp_path / "code.pt").write_bytes(code)
    with pytest.raises(pearl.SpecError, match="not a state_dict of tensors alone"):
        begun(plan, tmp_path / "code.pt")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(pearl.SpecError, match="no file or run folder"):
        begun(plan, tmp_path / "absent")
    with pytest.raises(pearl.SpecError, match="has its own networks"):
        pearl.compile(SMALL, plan=plan).train(out=folder, resume=True, start_from=folder)
