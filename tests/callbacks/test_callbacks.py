"""Callbacks that ship, on a run of the smallest kind; and the examples of one's own."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import pearl
from pearl import STOP
from pearl.algorithms.evaluation import acting_of
from pearl.callbacks.csv_log import CsvLog
from pearl.callbacks.patience import Patience
from pearl.callbacks.stop_at_return import StopAtReturn
from pearl.callbacks.tensorboard import TensorBoard
from pearl.callbacks.video import Video, record
from pearl.callbacks.wandb_log import WandB
from pearl.spec.user_code import build_graph
from pearl.training.policy import Policy
from pearl_devices import buffers, user_imports
from tests.training.own_spaces import Spaced
from tests.training.test_interruption import EVALUATED

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plan():
    return pearl.plan(pearl.load(EVALUATED))


def train(plan, *callbacks, **options):
    return pearl.compile(EVALUATED, plan=plan).train(callbacks=callbacks, **options)


def evaluated(mean, steps=100):
    return pearl.Progress(env_steps=steps, total_steps=200, mean_return=None, eval_mean=mean,
                          env_steps_per_s=1.0, predicted_env_steps_per_s=2.0,
                          phase="evaluation")  # fmt: skip


def test_a_return_that_is_reached_ends_the_run(plan):
    run = train(plan, StopAtReturn(5.0))  # any policy balances that long
    assert (run.status, run.env_steps, run.stopped.by) == ("stopped", 240, "StopAtReturn")


def test_patience_counts_evaluations_without_gain():
    patience = Patience(2, gain=1.0)
    means = [None, 10.0, 11.0, 12.0, 12.5, None, 13.0]
    answers = [patience.on_evaluation(evaluated(mean)) for mean in means]
    assert answers == [None, None, None, None, None, None, pearl.STOP]
    assert patience.on_evaluation(evaluated(20.0)) is None
    soon = Patience(1)
    assert [soon.on_evaluation(evaluated(mean)) for mean in (1.0, 1.5, 1.5)] == [*2 * [None], STOP]
    with pytest.raises(pearl.SpecError, match="evaluations is 0"):
        Patience(0)


def test_a_table_is_continued_by_the_columns_that_it_has(tmp_path):
    path = tmp_path / "new" / "log.csv"
    log = CsvLog(path)
    log.on_progress(evaluated(None, 8))
    log.on_evaluation(evaluated(3.0, 16))
    names = "mean_return,eval_mean,best_mean,updates,episodes,env_steps_per_s"
    lines = [
        f"env_steps,{names},predicted_env_steps_per_s,wall_s,cpu_s",
        "8,nan,nan,nan,0.0,0.0,1.0,2.0,0.0,0.0",
        "16,nan,3.0,nan,0.0,0.0,1.0,2.0,0.0,0.0",
    ]
    assert path.read_text().splitlines() == lines
    CsvLog(path).on_evaluation(evaluated(4.0, 24))
    assert path.read_text().splitlines()[3:] == ["24,nan,4.0,nan,0.0,0.0,1.0,2.0,0.0,0.0"]
    path.write_text("eval_mean,wall_s\n")
    CsvLog(path).on_evaluation(evaluated(5.0, 24))
    assert path.read_text().splitlines() == ["eval_mean,wall_s", "5.0,0.0"]
    path.write_text("")
    CsvLog(path).on_evaluation(evaluated(None, 8))
    assert path.read_text().splitlines() == lines[:2]


def test_wandb_gets_its_three_calls(monkeypatch):
    """A twin of the package: `init`, `log` and `finish`, as its documentation has them."""
    seen = []
    run = SimpleNamespace(log=lambda row: seen.append(row), finish=lambda: seen.append("end"))
    twin = SimpleNamespace(init=lambda **given: seen.append(given) or run)
    monkeypatch.setitem(sys.modules, "wandb", twin)
    logger = WandB("swing", mode="offline")
    for moment in (logger.on_progress, logger.on_evaluation, logger.on_end, logger.on_evaluation):
        moment(SimpleNamespace(env_steps=8, numbers=lambda: {"eval_mean": 1.0}))
    begun, row = {"project": "swing", "mode": "offline"}, {"env_steps": 8, "eval_mean": 1.0}
    assert seen == [begun, row, row, row, "end", begun, row]


@pytest.mark.parametrize(("make", "module", "extra"),
                         [(lambda to: TensorBoard(to), "tensorboard", "tensorboard"),
                          (lambda to: WandB("p"), "wandb", "wandb"),
                          (lambda to: Video(to), "moviepy", "video")])  # fmt: skip
def test_a_package_that_is_missing_is_named_with_its_extra(
    make, module, extra, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(pearl.SpecError, match=rf"pearl-toolkit\[{extra}\]"):
        make(tmp_path)


def test_tensorboard_reads_what_is_written(plan, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(plan, TensorBoard(tmp_path))
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert found.Scalars("eval_mean")[0].step == 240
    assert found.Scalars("updates")[-1].value == run.updates


def test_a_video_plays_actions_of_the_space(monkeypatch, tmp_path):
    """Actions of this environment begin at another number than 0."""
    taken = []

    class Noted(Spaced):
        def step(self, action):
            taken.append(self.action_space.contains(action))
            return super().step(action)

    monkeypatch.setattr(user_imports, "make_environment", lambda *_: Noted())
    monkeypatch.setattr(gymnasium.wrappers, "RecordVideo", lambda env, *_, **__: env)
    spec = {"algorithm": {"name": "dqn", "env": "tests.training.own_spaces:Spaced"}}
    system = pearl.load({**spec, "platform": "cpu_gpu"})
    acting = acting_of(build_graph(system))
    parameters = np.zeros(buffers.specs(acting)["policy.q"][0], np.float32)
    record(Policy(system, acting, parameters), tmp_path, "x", 0)
    assert taken == [True] * 5


@pytest.mark.parametrize("name", ["stop_early", "log_returns"])
def test_an_example_is_short_and_does_what_it_says(name, plan, tmp_path):
    file = ROOT / "examples" / f"{name}.py"
    assert len(file.read_text().splitlines()) < 25
    found = spec_from_file_location(name, file)
    module = module_from_spec(found)
    found.loader.exec_module(module)
    if name == "stop_early":
        callback = module.Settled()
        event = SimpleNamespace(updates=501, losses={"q": 1.0})
        assert callback.on_progress(event) is None
        event.losses = {"q": 0.01}
        assert callback.on_progress(event) is pearl.STOP
        assert train(plan, module.Settled()).status in ("done", "stopped")
    else:
        train(plan, module.JsonLines(tmp_path / "log"))
        rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert [row["step"] for row in rows] == [240, 480, 720, 800]
