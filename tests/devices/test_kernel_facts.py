"""All that the records say of kernels is what is kept in `kernel_facts.json`.

`pytest --write tests/devices/test_kernel_facts.py` writes the file anew.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pearl_devices import Device, Kernel, kernel, offers
from pearl_devices.kernel import Module
from pearl_devices.kernels import KINDS, acts, environments, kind_of, repeats
from pearl_devices.kernels.evaluation import evaluation
from pearl_devices.kernels.examples import fill_arrays, loops
from pearl_devices.kernels.fused import misfit
from tests.devices.gpu_stand_in import NotingTwin, bind_cuda
from tests.devices.test_kernel_kinds import sample

FILE = Path(__file__).with_name("kernel_facts.json")
OWN = Module("nets:mlp", (3,), 2, params=77, flops=500.0, numbers=30, operations=5)
RING: dict[str, Any] = {"envs": 8, "obs": 12, "act": 0, "capacity": 5000, "fanout": 16}
DRAW: dict[str, Any] = {**RING, "batch": 32, "steps": 3, "n_step": 4}
FRAMES: dict[str, Any] = {"stack": 4, "apart": 16, "ends": 30}
ACT: dict[str, Any] = {"envs": 6, "obs": 3, "act": 2}
TWIN: dict[str, Any] = {
    "obs": 3, "act": 2, "batch": 16, "steps": 6, "policy_delay": 3, "actor": (3, 8, 2),
    "critic1": (5, 8, 6, 1), "critic2": (5, 8, 6, 1),
}  # fmt: skip
DQN: dict[str, Any] = {"obs": 4, "act": 0, "batch": 16, "steps": 2, "double": 0}
ROLLOUT: dict[str, Any] = {"envs": 6, "obs": 3, "act": 2, "tanh": 0, "horizon": 20}
NETS: dict[str, Any] = {"actor": (3, 8, 2), "critic": (3, 8, 1)}
LEARN: dict[str, Any] = {**ROLLOUT, **NETS, "epochs": 2, "batch": 40, "steps": 6}
FACTORED: dict[str, Any] = {"choices": 7, "actor": (3, 8, 7)}
SHARED: dict[str, Any] = {
    **DQN, "batch": 64, "q": (4, 5, 2), "double": 1, "learners": 4, "learner": 2, "td": 1,
}  # fmt: skip
LOSS = "pearl.algorithms.ppo:losses"
ACTING = kernel("inference.ddpg", ACT, actor=(3, 8, 2))

CASES: dict[str, Kernel] = {
    **{name: sample(kind) for name, kind in KINDS.items()},
    "normalised": kernel(
        "env_step", ACT, program="Pendulum-v1", normalise_obs=1, normalise_reward=1
    ),
    "256 envs": kernel("env_step", program="CartPole-v1", envs=256, obs=4, act=0),
    "257 envs": kernel("env_step", program="CartPole-v1", envs=257, obs=4, act=0),
    "given": kernel("env_step", program="CartPole-v1", args={"x": 1}, envs=2, obs=4, act=0),
    "other sizes": kernel("env_step", program="Acrobot-v1", envs=2, obs=4, act=0),
    "no env": kernel("env_step", envs=2, obs=4, act=0),
    "factored env": kernel("env_step", ACT, program="package:env", choices=5),
    "frames env": kernel("env_step", envs=8, obs=12, act=0, stack=4, program="Other-v0"),
    "duelling actor": kernel("inference.dqn", envs=7, obs=4, act=0, q=(4, 8, 6, 4), duelling=1),
    "module actor": kernel("inference.ddpg", ACT, actor=(3, 2), modules={"actor": OWN}),
    "own actor": kernel("inference.own", ACT, policy=(3, 8, 2)),
    "policy": kernel("inference.ppo", ACT, actor=(3, 8, 2), tanh=0),
    "factored policy": kernel("inference.ppo", ACT, **FACTORED, tanh=1),
    "insert": kernel("replay_insert", RING, prioritised=1),
    "insert frames": kernel("replay_insert", RING, **FRAMES, prioritised=0),
    "insert actions": kernel("replay_insert", {**RING, "act": 3, "fanout": 8}, prioritised=1),
    "sample": kernel("replay_sample", DRAW, prioritised=1),
    "sample frames": kernel("replay_sample", DRAW, **FRAMES, prioritised=1),
    "sample evenly": kernel("replay_sample", {**DRAW, "act": 3}, prioritised=0),
    "priorities": kernel("replay_update", DRAW),
    "512 draws": kernel("replay_update", {**DRAW, "batch": 512, "steps": 1, "capacity": 51_200}),
    "513 draws": kernel("replay_update", {**DRAW, "batch": 513, "steps": 1, "capacity": 51_200}),
    "8 a node": kernel("replay_update", {**DRAW, "batch": 1024, "steps": 2, "fanout": 8}),
    "2 a node": kernel("replay_update", {**DRAW, "batch": 4096, "steps": 2, "fanout": 2}),
    "duelling": kernel("update.dqn", DQN, q=(4, 8, 6, 4), duelling=1),
    "scheduled": kernel("update.dqn", DQN, q=(4, 8, 2), scheduled=1, program=LOSS),
    "module": kernel("update.dqn", {**DQN, "obs": 3}, q=(3, 2), modules={"q": OWN}),
    "module with a loss": kernel(
        "update.dqn", {**DQN, "obs": 3}, q=(3, 2), modules={"q": OWN}, program=LOSS
    ),
    "td3": kernel("update.td3", TWIN),
    "td3 with a loss": kernel("update.td3", {**TWIN, "batch": 3}, program=LOSS),
    "uneven td3": kernel("update.td3", {**TWIN, "critic2": (5, 9, 1), "policy_delay": 2}),
    "td3 modules": kernel("learn.td3", {**DRAW, **TWIN, "act": 2}, prioritised=0),
    "sac": kernel("update.sac", TWIN, alpha=(0, 1)),
    "own update": kernel("update.own", {**TWIN, "tanh": 1}),
    "sum": kernel("param_sync", a=5, b=7, params=12, args={"network": "a+b"}),
    "store": kernel("rollout_insert", ROLLOUT),
    "store kept": kernel("rollout_insert", ROLLOUT, kept=5, choices=4),
    "advantages": kernel("gae", ROLLOUT, critic=(3, 8, 1)),
    "few advantages": kernel("gae", {**ROLLOUT, "horizon": 21}, critic=(3, 8, 1)),
    "returns": kernel("gae", {**ROLLOUT, "horizon": 40}, critic=(3, 8, 1), ahead=4),
    "returns by step": kernel("gae", ROLLOUT, critic=(3, 8, 1), ahead=4, kept=5),
    "module advantages": kernel("gae", ROLLOUT, critic=(3, 1), modules={"critic": OWN}),
    "ppo": kernel("update.ppo", LEARN, program=LOSS),
    "ppo factored": kernel("update.ppo", {**LEARN, **FACTORED}, stops=1, scheduled=1),
    "ppo stops": kernel("update.ppo", LEARN, stops=1),
    "ppo minibatches": kernel("update.ppo", {**LEARN, "batch": 50}),
    "ppo module": kernel("update.ppo", {**LEARN, "critic": (3, 1)}, modules={"critic": OWN}),
    "a2c by step": kernel("update.a2c", {**LEARN, "batch": 6, "epochs": 1, "steps": 1}, kept=5),
    "own on rollouts": kernel("update.own", LEARN),
    "iteration": kernel("iteration.ppo", {**LEARN, **FACTORED}, program="Pendulum-v1"),
    "rollout": kernel("rollout.ppo", ROLLOUT, actor=(3, 8, 2), program="Pendulum-v1"),
    "learner": kernel("learner_gradient.dqn", SHARED),
    "learner of ppo": kernel("learner_gradient.ppo", LEARN, learners=4, learner=0, program=LOSS),
    "star": kernel("all_reduce.dqn", SHARED),
    "shard": kernel("all_reduce.dqn", SHARED, shards=1),
    "first shard": kernel("all_reduce.dqn", {**SHARED, "learner": 0}, shards=1),
    "step": kernel("learner_step.dqn", SHARED, shards=1),
    "learner 0": kernel("learner_step.a2c", LEARN, learners=2, learner=0),
    "evaluation": evaluation(ACTING, "Pendulum-v1", {"g": 9.0}, 16, max_steps=7, normalise_obs=1),
    "17 episodes": evaluation(
        replace(ACTING, interface=(kernel("inference.dqn", envs=2, obs=3, act=0, q=(3, 2)),)),
        "Pendulum-v1", {}, 17, max_steps=7,
    ),
    "evaluation by": evaluation(
        kernel("inference.own", ACT, policy=(3, 2), program="a:b", modules={"policy": OWN}),
        "Other-v0", {}, 33, max_steps=7,
    ),
    "offline": kernel(
        "offline.sarsa", states=6, actions=3, obs=1, act=0, batch=90, chunks=4, bits=8, order=1
    ),
    "average": kernel("offline.average", states=6, actions=3, obs=1, act=0, chunks=4, bits=8),
}  # fmt: skip
PAIR: dict[str, Any] = {"obs": 3, "act": 0}
ROWS: dict[str, Any] = {**ROLLOUT, "act": 0, "tanh": 1}
CASES |= {
    "pairs of blocks": kernel("inference.sac", {**ACT, "envs": 70_000}, actor=(3, 64, 64, 4)),
    "2048 rows": kernel("inference.dqn", PAIR, envs=2048, q=(3, 64, 2)),
    "2049 rows": kernel("inference.dqn", PAIR, envs=2049, q=(3, 64, 2)),
    "weights not held": kernel("inference.dqn", PAIR, envs=2049, q=(3, 341, 2)),
    "small tiles": kernel("inference.dqn", PAIR, envs=2049, q=(3, 342, 2)),
    "1024 wide": kernel("inference.dqn", PAIR, envs=9, q=(3, 1024, 2)),
    "1025 wide": kernel("inference.dqn", PAIR, envs=9, q=(3, 1025, 2)),
    "many judged": kernel("gae", {**ROWS, "envs": 600, "horizon": 100}, critic=(3, 64, 1)),
    "many stored": kernel("rollout_insert", {**ROWS, "envs": 90_000, "horizon": 2}),
    "many inserted": kernel(
        "replay_insert", {**RING, "envs": 30_000, "capacity": 60_000}, prioritised=0
    ),
    "large copy": kernel("param_sync", params=300_000, args={"network": "q"}),
    "a2c in one launch": kernel("update.a2c", {**LEARN, **ROWS, "batch": 120, "steps": 1}),
    "sac of 70 units": kernel(
        "update.sac", {**TWIN, "batch": 100, "actor": (3, 70, 4)}, alpha=(0, 1)
    ),
    "ddpg of 200 units": kernel(
        "update.ddpg",
        {n: TWIN[n] for n in ("obs", "act", "steps")},
        actor=(3, 200, 200, 2), critic=(5, 200, 200, 1), batch=50,
    ),
}  # fmt: skip
LIMITS: list[tuple[str, dict[str, Any]]] = [
    (name, {**DQN, "q": layers, "batch": batch, **more})
    for name, layers, batch, more in [
        ("widest", (512, 256, 256, 256, 256, 2), 65_536, {}),
        ("deep", (4, 8, 8, 8, 8, 8, 2), 16, {}),
        ("wide", (4, 257, 2), 16, {}),
        ("inputs", (513, 8, 2), 16, {}),
        ("rows", (4, 8, 2), 65_537, {}),
    ]
]
CASES |= {name: kernel("update.dqn", sizes) for name, sizes in LIMITS}


def flows(k: Kernel) -> dict[str, list[Any]]:
    """The type and shape of every array, and whether it is written and sent."""
    kind = kind_of(k)
    arrays = kind.arrays(k)
    found: dict[str, list[Any]] = {n: [dtype, *shape] for n, (shape, dtype) in arrays.items()}
    for word, names in (("written", kind.written(arrays)), ("sent", kind.sent(k))):
        for name in names:
            found[name].append(word)
    return found


def summary(k: Kernel) -> list[Any]:
    return [k.kind, {n: k.dims[n] for n in sorted(k.dims)}, k.program, dict(k.args)]


def launches(k: Kernel, variant: str) -> list[Any]:
    """The launches that a variant in CUDA prepares: program, constants, sizes and arguments."""
    given = {n: np.zeros(shape, dtype) for n, (shape, dtype) in kind_of(k).arrays(k).items()}
    arrays = {n: torch.from_numpy(a) for n, a in given.items()}
    names = {id(a): n for n, a in arrays.items()}

    def told(argument: Any) -> Any:
        if not isinstance(argument, torch.Tensor):
            return argument
        if argument.dtype == torch.int64 and argument.numel() <= 16:
            made = argument.tolist()
        else:
            made = [str(argument.dtype), *argument.shape]
        return names.get(id(argument), made)

    driver = NotingTwin(launches=False)
    bind_cuda(k, arrays, driver, variant)
    return [
        [p.program.file, p.program.constants, p.program.exact, p.kernel, p.grid, p.block,
         p.shared_bytes, *map(told, p.arguments)]
        for p in driver.prepared
    ]  # fmt: skip


CPU = Device("cpu", "cpu", width=8)
DEVICES = {
    "cpu": CPU,
    "one core": replace(CPU, width=1),
    "without torch": replace(CPU, figures={"torch": 0.0}),
    "without bfloat16": replace(CPU, width=2, figures={"bfloat16": 0.0}),
    "gpu": Device("gpu", "gpu", width=80),
}


def offered(k: Kernel, device: Device) -> str:
    """The ways to run a kernel, or why there is none."""
    ways = offers(k, device)
    return " ".join(f"{v}:{w}" for v, w in ways) if ways else repr(ways)


def ways(k: Kernel) -> dict[str, str]:
    """What each device offers, where this is not what the CPU offers."""
    found = {n: offered(k, device) for n, device in DEVICES.items()}
    return {n: told for n, told in found.items() if n == "cpu" or told != found["cpu"]}


def facts(k: Kernel) -> dict[str, Any]:
    kind = kind_of(k)
    words = (kind.structure, kind.word, kind.does, kind.side, kind.code, kind.example)
    given = (kind.parts(k), *kind.cuts(k))
    about = (kind.repeatable, kind.stochastic, kind.assumed, kind.averaged, kind.minibatches)
    about_it = {
        "work": [k.flops, k.bytes_in, k.bytes_out, k.resident_bytes],
        "words": words,
        "about": [*about, acts(k), repeats(k), kind.actions, kind.horizons, kind.in_evaluation],
        "arrays": {n: " ".join(map(str, about)) for n, about in flows(k).items()},
        "of a copy": kind.per_copy,
        "of a group": kind.per_group,
        "products": [kind.rounds(k), *kind.products(k)],
        "passes": {n: list(vars(p).values()) for n, p in kind.passes(k).items()},
        "operations": [kind.operations(k), kind.accesses(k)],
        "cuts": [[[*summary(part), n] for part, n in cut] for cut in given if cut],
        "like": summary(kind.like(k)) if kind.like else None,
        "rows": kind.rows(k),
        "policy": summary(kind.policy(k)) if kind.policy else None,
        "variants": {n: [v.program(k), v.cores, v.fits(k)] for n, v in kind.variants.items()},
        "cuda": {
            n: [v.program(k), v.fits(k), v.launches(k), kind.on_host(k, n)]
            for n, v in kind.cuda.items()
        },
        "offers": ways(k),
        "fpga": kind.fpga,
        "launches": {
            n: launches(k, n)
            for n, v in kind.cuda.items()
            if n not in ("eager", "graph") and v.fits(k)
        },
        "one launch": misfit(k) if "fused" in kind.cuda else None,
    }
    return {what: told for what, told in about_it.items() if told}


def examples(loop: tuple[Kernel, ...]) -> dict[str, Any]:
    """The kernels of an example, and ends of the arrays that it is checked on."""
    filled = fill_arrays(loop, seed=3)
    ends = {n: (a.flat[0], a.flat[-1], a.min(), a.max()) for n, a in filled.items()}
    of = {n: [float(f"{x:.6g}") for x in row] for n, row in ends.items()}
    return {"kernels": [summary(k) for k in loop], "filled": of}


def found(name: str) -> dict[str, Any]:
    with patch.object(environments, "find_spec", lambda name: None):  # as without envpool
        return facts(CASES[name]) if name in CASES else examples(LOOPS[name])


LOOPS = {f"loop {n}": loop for n, loop in enumerate(loops())}
KEPT: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def test_the_facts_of_every_case_are_kept(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--write"):
        lines = [f" {json.dumps(n)}: {json.dumps(found(n))}" for n in (*CASES, *LOOPS)]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    assert KEPT.keys() <= {*CASES, *LOOPS}


@pytest.mark.parametrize("name", KEPT)
def test_the_facts_of_a_kernel_are_those_that_are_kept(name: str) -> None:
    assert json.loads(json.dumps(found(name))) == KEPT[name]
