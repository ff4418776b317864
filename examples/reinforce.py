"""An algorithm of one's own that learns from rollouts: REINFORCE (Williams 1992) with a learnt
baseline, the value of the state.

PYTHONPATH=. python -m examples.reinforce
"""

import pearl
from pearl.algorithms.families.rollout import build, log_prob_and_entropy, start

FAMILY = "rollout"
POLICY = "actor"


def graph(system):
    return build(system, "reinforce", losses="examples.reinforce:losses", by_row=True)


def initialise(buffers, system, seed):
    start(buffers, system, seed)


def losses(nets, batch, hyper):
    """The log density of every action times the return that followed, less the baseline."""
    log_prob, entropy = log_prob_and_entropy(nets, batch)
    value = nets.critic(batch.obs)
    above = batch.returns - value.detach()
    actor = -(above * log_prob).mean() - hyper.entropy * entropy.mean()
    critic = hyper.value_weight * (batch.returns - value).square().mean()
    yield ("actor", "critic"), (actor, critic)


SPEC = {
    "algorithm": {
        "name": "examples.reinforce",
        "env": "CartPole-v1",
        "num_envs": 8,
        "rollout_steps": 64,
        "gae_lambda": 1.0,  # returns are sums of rewards
        "learning_rate": 5e-3,
    },
    "train": {"steps": 100_000, "evaluate_every": 0},
}

if __name__ == "__main__":
    print(pearl.compile(SPEC).train().returns)
