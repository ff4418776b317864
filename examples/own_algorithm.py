"""An algorithm of one's own: Munchausen DQN (Vieillard, Pietquin, Geist 2020), by its torch loss.

PYTHONPATH=. python -m examples.own_algorithm
"""

import pearl
from pearl.algorithms.families.replay import build
from pearl.algorithms.initial_values import sizes, start

ACTIONS, POLICY = "discrete", "q"


def networks(system):
    return {"q": (system.env.obs, *system.algorithm.hidden, system.env.actions)}


def graph(system):
    return build(
        "munchausen",
        sizes(system),
        networks=networks(system),
        policy=POLICY,
        losses="examples.own_algorithm:losses",
        options=system.algorithm.options,
    )


def initialise(buffers, system, seed):
    start(buffers, system, seed, networks(system), POLICY)


def losses(nets, batch, hyper, *, temperature=0.03, share=0.9, least=-1.0):
    """Soft Q-learning whose reward has a share of the policy's own log-probability added."""
    import torch

    taken = batch.action.unsqueeze(1)
    with torch.no_grad():
        ahead, now = nets.target.q(batch.next_obs), nets.target.q(batch.obs)
        log_ahead, log_now = (torch.log_softmax(q / temperature, dim=1) for q in (ahead, now))
        bonus = (temperature * log_now.gather(1, taken).squeeze(1)).clamp(least, 0.0)
        value = (log_ahead.exp() * (ahead - temperature * log_ahead)).sum(1)
        target = batch.reward + share * bonus + batch.discount * value
    td = nets.q(batch.obs).gather(1, taken).squeeze(1) - target
    yield "q", (batch.weight * 0.5 * td.square()).mean()
    return td.detach().abs()


SPEC = {
    "algorithm": {"name": "examples.own_algorithm", "env": "CartPole-v1", "num_envs": 4},
    "train": {"steps": 20_000, "evaluate_every": 0},
}

if __name__ == "__main__":
    print(pearl.compile(SPEC).train().returns)
