"""DQN on observations that a kernel kind of this file's own normalises by running statistics.

The kernel stands between step and act. It also normalises the successors that the replay
stores, so learning sees what acting sees. In evaluation, in `pearl.Policy` and for the first
observations of a run `look` does the same with the statistics as training left them.

PYTHONPATH=. python -m examples.normalised_dqn
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

ACTIONS, POLICY, LIMIT = "discrete", "q", 10.0


def arrays(k):
    rows, obs = (k.dim("envs"), k.dim("obs")), (k.dim("obs"),)
    return {
        "env.obs": (rows, "float32"),
        "step.next_obs": (rows, "float32"),
        "seen.mean": (obs, "float64"),
        "seen.variance": (obs, "float64"),
        "seen.count": ((1,), "float64"),
    }


def scaled(rows, a):
    deviation = np.sqrt(a["seen.variance"] + 1e-8)
    return np.clip((rows - a["seen.mean"]) / deviation, -LIMIT, LIMIT)


def look(k, a):
    """One firing in evaluation: scales the observations, and changes nothing else."""
    a["env.obs"][:] = scaled(a["env.obs"], a)


def normalise(k, a):
    """One firing in training: joins the successors with the statistics (Chan, Golub and LeVeque
    1983), then scales the successors and what the network reads next."""
    rows, count = a["step.next_obs"], a["seen.count"][0]
    total = count + len(rows)
    delta = rows.mean(axis=0, dtype=np.float64) - a["seen.mean"]
    moment = count * a["seen.variance"] + len(rows) * rows.var(axis=0, dtype=np.float64)
    a["seen.variance"][:] = (moment + delta**2 * count * len(rows) / total) / total
    a["seen.mean"][:] += delta * len(rows) / total
    a["seen.count"][0] = total
    rows[:] = scaled(rows, a)
    look(k, a)


NORMALISE = KernelKind(
    arrays=arrays,
    writes=("env.obs", "step.next_obs", "seen."),
    variants={"python": "examples.normalised_dqn:normalise"},
    in_evaluation="examples.normalised_dqn:look",
)


def graph(system):
    loop = dqn.graph(system)
    sizes = {"envs": loop.task("step").kernel.dim("envs"), "obs": system.env.obs}
    task = Task("normalise", kernel("examples.normalised_dqn:NORMALISE", sizes), writes=("seen",))
    return inserted(loop, task, after="step", before="act")


def initialise(buffers, system, seed):
    dqn.initialise(buffers, system, seed)
    buffers["seen.variance"][:] = 1.0


SPEC = {
    "algorithm": {"name": "examples.normalised_dqn", "env": "CartPole-v1", "num_envs": 8},
    "train": {"steps": 20_000},
}

if __name__ == "__main__":
    print(pearl.compile(SPEC).train().returns)
