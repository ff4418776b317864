"""DQN with an intrinsic reward: random network distillation (Burda et al. 2018, arXiv 1810.12894).

The bonus of a state is the error of a network that learns to predict the outputs of a fixed random
one there: it falls where the agent has been. It is computed between step and store, by
a kernel kind of this file's own.

PYTHONPATH=. python -m examples.rnd
"""

import numpy as np

import pearl
from pearl.algorithms import dqn
from pearl.algorithms.dqn import Options, losses
from pearl.graph.insertion import inserted
from pearl.graph.task_graph import Task
from pearl_devices import kernel
from pearl_devices.kernels import KernelKind

__all__ = ["ACTIONS", "POLICY", "Options", "graph", "initialise", "losses"]

ACTIONS, POLICY, OUTPUTS, RATE = "discrete", "q", 32, 0.02


def arrays(k):
    envs, obs, hidden = k.dim("envs"), k.dim("obs"), k.dim("hidden")
    shapes = {"step.reward": (envs,), "step.next_obs": (envs, obs), "rnd.bonus": (envs,)}
    for net in ("target", "predictor"):
        shapes |= {f"rnd.{net}.1": (obs, hidden), f"rnd.{net}.2": (hidden, OUTPUTS)}
    return {name: (shape, "float32") for name, shape in shapes.items()}


def bonus(k, a):
    """One firing: adds the bonus to the rewards, and takes a gradient step on the predictor."""
    obs = np.tanh(a["step.next_obs"])
    features = np.tanh(obs @ a["rnd.predictor.1"])
    aim = np.tanh(obs @ a["rnd.target.1"]) @ a["rnd.target.2"]
    error = features @ a["rnd.predictor.2"] - aim
    a["rnd.bonus"][:] = (error**2).mean(1)
    a["step.reward"][:] += k.args["scale"] * a["rnd.bonus"]
    back = (error @ a["rnd.predictor.2"].T) * (1 - features**2)
    a["rnd.predictor.2"][:] -= RATE / len(obs) * features.T @ error
    a["rnd.predictor.1"][:] -= RATE / len(obs) * obs.T @ back


BONUS = KernelKind(
    arrays=arrays,
    writes=("step.reward", "rnd.bonus", "rnd.predictor.1", "rnd.predictor.2"),
    variants={"python": "examples.rnd:bonus"},
)


def graph(system):
    loop = dqn.graph(system)
    envs = loop.task("step").kernel.dim("envs")
    sizes = {"envs": envs, "obs": system.env.obs, "hidden": 64}
    task = Task("bonus", kernel("examples.rnd:BONUS", sizes, args={"scale": 1.0}), writes=("rnd",))
    return inserted(loop, task, after="step", before="store")


def initialise(buffers, system, seed):
    dqn.initialise(buffers, system, seed)
    rng = np.random.default_rng(seed)
    for name in ("target.1", "target.2", "predictor.1", "predictor.2"):
        array = buffers[f"rnd.{name}"]
        array[:] = rng.normal(0, 2 / np.sqrt(len(array)), array.shape)


SPEC = {
    "algorithm": {"name": "examples.rnd", "env": "MountainCar-v0", "num_envs": 8},
    "train": {"steps": 20_000, "evaluate_every": 0},
}

if __name__ == "__main__":
    print(pearl.compile(SPEC).train().returns)
