"""DQN whose network has several outputs for every action: quantiles of the return (Dabney et al.
2018, "Distributional reinforcement learning with quantile regression")."""

from pearl.algorithms.families.replay import build
from pearl.algorithms.initial_values import sizes, start

ACTIONS, POLICY = "discrete", "q"
QUANTILES = 3


def networks(system):
    return {"q": (system.env.obs, *system.algorithm.hidden, system.env.actions * QUANTILES)}


def graph(system):
    options = dict(system.algorithm.options)
    choosing = options.pop("choosing", True)
    return build(
        "quantiles",
        sizes(system),
        networks=networks(system),
        policy=POLICY,
        losses=f"{__name__}:losses",
        act=f"{__name__}:act" if choosing else None,
        options=options,
    )


def initialise(buffers, system, seed):
    start(buffers, system, seed, networks(system), POLICY)


def quantiles(outputs):
    """(rows, actions, quantiles)."""
    return outputs.reshape(len(outputs), -1, QUANTILES)


def act(nets, obs, explore, noise):
    """Epsilon-greedy on the mean over the quantiles."""
    import torch

    values = quantiles(nets.q(obs)).mean(2)
    greedy = values.argmax(1)
    if explore is None:
        return greedy
    drawn = noise.uniform(len(obs), 2)
    other = (drawn[:, 1] * values.shape[1]).long()
    return torch.where(drawn[:, 0] < explore, other, greedy)


def losses(nets, batch, hyper):
    """Quantile regression towards the quantiles of the best action of the target network."""
    import torch

    rows = torch.arange(len(batch.action))
    with torch.no_grad():
        ahead = quantiles(nets.target.q(batch.next_obs))
        best = ahead[rows, ahead.mean(2).argmax(1)]
        target = batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * best
    now = quantiles(nets.q(batch.obs))[rows, batch.action]
    apart = target.unsqueeze(1) - now.unsqueeze(2)
    levels = (torch.arange(QUANTILES) + 0.5) / QUANTILES
    weights = (levels.view(1, -1, 1) - (apart.detach() < 0).float()).abs()
    yield "q", (batch.weight * (weights * apart.abs()).mean((1, 2))).mean()
    return apart.mean((1, 2)).detach().abs()
