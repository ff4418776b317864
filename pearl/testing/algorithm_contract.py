"""`AlgorithmContract`: tests of an algorithm module, by its name in a spec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import pearl
from pearl.algorithms import Algorithm, algorithm
from pearl.algorithms.options import Acting
from pearl.errors import SpecError
from pearl.graph.sequential import program_order
from pearl_devices import Buffers, Device, Kernel, cpu
from pearl_devices.buffers import allocate, specs
from pearl_devices.primitives.math.rng import key

DISCRETE: Mapping[str, Any] = {"obs": 4, "actions": 2}
CONTINUOUS: Mapping[str, Any] = {"obs": 3, "act": 2, "low": -2.0, "high": [1.0, 3.0]}
TABLE: Mapping[str, Any] = {"states": 16, "actions": 4}
ENVS = {"tabular": "FrozenLake-v1", "continuous": "Pendulum-v1"}
SMALL: Mapping[str, Mapping[str, Any]] = {
    "replay": {"batch_size": 8, "learning_starts": 16, "replay": {"capacity": 500}},
    "rollout": {"rollout_steps": 8},
}
PASSING = ("batch.", "step.", "loop.", "act.", "best.")
"""Arrays that only carry what one firing tells another: at the end they are of no use."""


class AlgorithmContract:
    """The contract of an algorithm. Inherit this class in a class `Test…` and set:

    name: of the algorithm in a spec: a name of `pearl.algorithms.ALGORITHMS`, or a module path.
    options: further keys of its section; they make the runs of this contract small.
    env: the environment of the short runs; by default a classic one of its actions.
    steps: env steps of the short runs.
    near: largest difference between a parameter's moves by the torch loss and by the native
        variant, if there is one.
    """

    name: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = {}
    env: ClassVar[str | None] = None
    steps: ClassVar[int] = 400
    near: ClassVar[float] = 2e-5

    def module(self) -> Algorithm:
        return algorithm(self.name)

    def spec(self, **more: Any) -> dict[str, Any]:
        """A small system of the algorithm, on a CPU that is not this host: nothing is timed."""
        found = self.module()
        small = SMALL.get(found.FAMILY, {})
        actions = "tabular" if found.FAMILY == "tabular" else found.ACTIONS
        env = self.env or ENVS.get(actions, "CartPole-v1")
        section = {"name": self.name, "env": env, "num_envs": 4, **small, **self.options, **more}
        quiet = {"evaluate_every": 0, "final_episodes": 1, "lanes": "one"}
        return {
            "algorithm": section,
            "platform": {"name": "one", "devices": {"cpu": "xeon_gold_6326"}},
            "limits": {"max_lanes": 1},
            "train": {"steps": self.steps, "checkpoint_every": 0, **quiet},
        }

    def systems(self) -> list[pearl.System]:
        """Return one system for each kind of actions that the algorithm supports."""
        found = self.module()
        if found.FAMILY == "tabular":
            return [pearl.load(self.spec(env="E", spaces=TABLE))]
        given = {"discrete": [DISCRETE], "continuous": [CONTINUOUS]}
        spaces = given.get(found.ACTIONS, [DISCRETE, CONTINUOUS])
        return [pearl.load(self.spec(env="E", spaces=each)) for each in spaces]

    def started(self, system: pearl.System, seed: int = 3) -> Buffers:
        """Return the arrays of a fresh run."""
        graph = self.module().graph(system)
        arrays = allocate(task.kernel for task in graph.tasks)
        for name, array in arrays.items():
            if name.startswith("rng."):
                array[:] = key(seed, name), 0
        self.module().initialise(arrays, system, seed)
        return arrays

    # Its own declarations

    def test_it_says_what_it_is(self) -> None:
        assert self.module().summary.strip()

    def test_every_option_has_a_default_and_a_type_with_a_sentence(self) -> None:
        options = self.module().Options
        assert options(name=self.name, env="E").num_envs >= 1
        fields: dict[str, Any] = options.__pydantic_fields__  # type: ignore[attr-defined]
        own = fields.keys() - Acting.__pydantic_fields__.keys()  # type: ignore[attr-defined]
        for option in own:
            assert fields[option].description, option
            with pytest.raises(SpecError, match=rf"algorithm\.{option}: given .*; "):
                pearl.load(self.spec(env="E", spaces=DISCRETE, **{option: ["no", {}]}))

    def test_an_option_it_does_not_have_is_refused_by_name(self) -> None:
        with pytest.raises(SpecError, match=r"algorithm\.no_such_option: unknown key"):
            pearl.load(self.spec(no_such_option=1))

    # Graph and first values

    def test_its_graph_can_run_and_is_always_the_same(self) -> None:
        for system in self.systems():
            graph = self.module().graph(system)
            assert graph == self.module().graph(system)
            order = program_order(graph)  # raises if the tasks wait for each other
            assert {name: order.count(name) for name in order} == dict(graph.repetition)
            assert graph.env_steps > 0
            host = Device("cpu", "cpu")
            for task in graph.tasks:
                assert cpu.offers(task.kernel, host), f"no device runs {task.kernel.kind}"
            assert f"policy.{self.module().POLICY}" in specs(graph.task("act").kernel)

    def test_first_values_are_finite_and_follow_from_the_seed(self) -> None:
        for system in self.systems():
            one, same, other = (self.started(system, seed) for seed in (3, 3, 4))
            for name, array in one.items():
                assert array.tobytes() == same[name].tobytes(), name
                assert array.dtype.kind != "f" or np.isfinite(array).all(), name
            if self.module().FAMILY != "tabular":
                policy = f"policy.{self.module().POLICY}"
                assert not np.array_equal(one[policy], other[policy])

    # The loss

    def learned(self, system: pearl.System, variant: str) -> tuple[Buffers, Buffers]:
        """Return arrays before and after firings of update in this variant, on random batches, or
        on one rollout of random observations."""
        graph = self.module().graph(system)
        before = _filled(self.started(system), system)
        rollout = self.module().FAMILY == "rollout"
        if rollout:
            _acted(before, graph.task("act").kernel)
        after = {name: array.copy() for name, array in before.items()}
        call = cpu.bind(graph.task("learn").kernel, variant, after)
        for _ in range(1 if rollout else 4):
            call()
        return before, after

    def variants(self, system: pearl.System) -> set[str]:
        kernel = self.module().graph(system).task("learn").kernel
        return set(dict(cpu.offers(kernel, Device("cpu", "cpu"))))

    def test_its_torch_loss_is_finite_and_moves_what_it_learns(self) -> None:
        for system in self.systems():
            if "torch" not in self.variants(system):
                assert self.module().FAMILY == "tabular"  # has none
                continue
            before, after = self.learned(system, "torch")
            for name, array in after.items():
                assert array.dtype.kind != "f" or np.isfinite(array).all(), name
            networks = [n[len("loss.") :] for n in after if n.startswith("loss.")]
            moved = [
                n
                for n in networks
                if not np.array_equal(before[f"learner.{n}"], after[f"learner.{n}"])
            ]
            assert moved == networks

    def test_its_torch_loss_moves_what_the_native_variant_moves(self) -> None:
        for system in self.systems():
            if {"native", "torch"} <= self.variants(system):
                _, native = self.learned(system, "native")
                _, torch = self.learned(system, "torch")
                for name in (n for n in native if n.startswith(("learner.", "batch.td"))):
                    np.testing.assert_allclose(
                        torch[name], native[name], rtol=2e-3, atol=self.near, err_msg=name
                    )

    # A run

    def test_it_takes_only_actions_that_the_environment_has(self) -> None:
        stepping = self.module().graph(pearl.load(self.spec())).task("step").kernel
        for variant, _ in cpu.offers(stepping, Device("cpu", "cpu")):
            self.check_actions(variant)

    def check_actions(self, stepped: str) -> None:
        """Check that the actions of a short run with this variant of step are the
        environment's."""
        spec = self.spec()
        spec["limits"]["variants"] = {"step": [stepped]}
        trainer = pearl.compile(spec, emulate=True, seed=5)
        assert trainer.plan.task("step").variant == stepped
        assert trainer.train(steps=64).status == "done"
        arrays, env = trainer.session.arrays, trainer.system.env
        taken = [a for n, a in arrays.items() if n in ("replay.action", "rollout.action")]
        for array in taken or [arrays["act.action"]]:
            if env.actions:
                assert set(np.unique(array)) <= set(range(env.actions))
            elif array is arrays["act.action"]:
                assert (array >= arrays["act.low"]).all()
                assert (array <= arrays["act.high"]).all()

    def test_two_short_runs_from_one_seed_are_equal_bit_for_bit(self, tmp_path: Path) -> None:
        """The second run ends at half of its steps and goes on from the checkpoint."""
        whole, half, resumed = (pearl.compile(self.spec(), emulate=True, seed=5) for _ in range(3))
        run = whole.train()
        half.train(steps=self.steps // 2, out=tmp_path)
        again = resumed.train(out=tmp_path, resume=True)
        assert again.returns == run.returns
        arrays = resumed.session.arrays
        for name, array in whole.session.arrays.items():
            if not name.startswith(PASSING):
                assert array.tobytes() == arrays[name].tobytes(), name


def _filled(arrays: Buffers, system: pearl.System) -> Buffers:
    """Random contents of the arrays that an update reads of a batch or of a rollout."""
    random = np.random.default_rng(0)
    for name, array in sorted(arrays.items()):
        if not name.startswith(("batch.", "rollout.")):
            continue
        if name.endswith(".action") and array.dtype.kind == "i":
            array[:] = random.integers(0, system.env.actions, array.shape)
        elif array.dtype == np.uint8:
            array[:] = random.random(array.shape) < 0.1
        elif name == "batch.discount":
            array[:] = 0.97
        elif name == "batch.weight":
            array[:] = random.uniform(0.2, 1.0, array.shape)
        elif array.dtype == np.float32:
            array[:] = random.normal(0, 1, array.shape)
    return arrays


def _acted(arrays: Buffers, inference: Kernel) -> None:
    """Sample actions of a rollout from the policy, with their densities."""
    call = cpu.bind(inference, "torch", arrays)
    sample = arrays.get("act.sample", arrays["act.action"])
    for t, obs in enumerate(arrays["rollout.obs"]):
        arrays["env.obs"][:] = obs
        call()
        arrays["rollout.action"][t], arrays["rollout.log_prob"][t] = sample, arrays["act.log_prob"]
