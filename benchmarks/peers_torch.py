"""Single-file DQN and PPO in torch over gymnasium's vector environment, the whole update under
torch.compile, as LeanRL does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from benchmarks import peers_workloads as shared
from benchmarks.peers_workloads import Clock, Workload


def run(load: Workload, seed: int) -> float:
    """Env steps per CPU-second."""
    import torch
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    # compiled steps, and the optimiser's, are made in the first updates: those are warm-up
    clock = Clock(shared.WARM if load.algorithm == "dqn" else 2 * load.envs * shared.HORIZON)
    envs = SyncVectorEnv(
        [lambda: clock.env(load.env)] * load.envs, autoreset_mode=AutoresetMode.SAME_STEP
    )
    learn = {"dqn": _dqn, "ppo": _ppo}[load.algorithm]
    learn(load, envs, seed)
    return clock.rate()


def _network(widths: tuple[int, ...], activation: Any) -> Any:
    from torch import nn

    parts: list[Any] = []
    for i, (a, b) in enumerate(pairwise(widths)):
        parts += [nn.Linear(a, b)] + ([activation()] if i < len(widths) - 2 else [])
    return nn.Sequential(*parts)


def _dqn(load: Workload, envs: Any, seed: int) -> None:
    import numpy as np
    import torch
    from torch import nn

    random, n = np.random.default_rng(seed), load.envs
    obs, _ = envs.reset(seed=seed)
    width, actions = obs.shape[1], 2
    q, target = (_network((width, *load.hidden, actions), nn.ReLU) for _ in range(2))
    target.load_state_dict(q.state_dict())
    optimiser = torch.optim.Adam(q.parameters(), lr=load.learning_rate, fused=True)

    def update(x: Any, after: Any, chosen: Any, reward: Any, end: Any) -> None:
        with torch.no_grad():
            aim = reward + shared.DISCOUNT * (1 - end) * target(after).max(1).values
        value = q(x).gather(1, chosen.unsqueeze(1)).squeeze(1)
        loss: Any = nn.functional.mse_loss(value, aim)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    step = torch.compile(update)
    held, following = np.zeros((2, load.capacity, width), np.float32)
    chosen = np.zeros(load.capacity, np.int64)
    rewards, ends = np.zeros((2, load.capacity), np.float32)
    (first, last), done, filled, updates = shared.EPSILON, 0, 0, 0
    while done < load.peer_steps["lean"]:
        if random.random() < max(last, first + (last - first) * done / load.explore_steps):
            action = random.integers(0, actions, n)
        else:
            with torch.no_grad():
                action = q(torch.from_numpy(obs)).argmax(1).numpy()
        seen, reward, terminated, truncated, infos = envs.step(action)
        successor = seen.copy()
        for e in np.flatnonzero(terminated | truncated):
            successor[e] = infos["final_obs"][e]
        rows = (np.arange(n) + done) % load.capacity
        held[rows], following[rows], chosen[rows] = obs, successor, action
        rewards[rows], ends[rows] = reward, terminated
        obs, done, filled = seen, done + n, min(filled + n, load.capacity)
        if done <= shared.LEARNING_STARTS:
            continue
        for _ in range(n):
            drawn = random.integers(0, filled, load.batch)
            step(*(torch.from_numpy(a[drawn]) for a in (held, following, chosen, rewards, ends)))
            updates += 1
            if updates % load.target_every == 0:
                target.load_state_dict(q.state_dict())


def _ppo(load: Workload, envs: Any, seed: int) -> None:
    import numpy as np
    import torch
    from torch import nn
    from torch.distributions import Categorical

    n = load.envs
    obs, _ = envs.reset(seed=seed)
    width, actions = obs.shape[1], 2
    actor = _network((width, *load.hidden, actions), nn.Tanh)
    critic = _network((width, *load.hidden, 1), nn.Tanh)
    weights = [*actor.parameters(), *critic.parameters()]
    optimiser = torch.optim.Adam(weights, lr=load.learning_rate, eps=1e-5, fused=True)

    def update(x: Any, chosen: Any, before: Any, gain: Any, aim: Any) -> None:
        dist: Any = Categorical(logits=actor(x), validate_args=False)
        ratio = (dist.log_prob(chosen) - before).exp()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        surrogate = torch.min(
            gain * ratio, gain * ratio.clamp(1 - shared.CLIP, 1 + shared.CLIP)
        ).mean()
        error = (critic(x).squeeze(1) - aim).square().mean()
        loss = -surrogate - shared.ENTROPY * dist.entropy().mean() + shared.VALUE * error
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, shared.MAX_NORM)
        optimiser.step()

    step = torch.compile(update)
    seen = torch.zeros(shared.HORIZON, n, width)
    acts = torch.zeros(shared.HORIZON, n, dtype=torch.long)
    densities, rewards, ends, values, gains = torch.zeros(5, shared.HORIZON, n)
    done = 0
    while done < load.peer_steps["lean"]:
        for t in range(shared.HORIZON):
            with torch.no_grad():
                x = torch.from_numpy(obs)
                dist: Any = Categorical(logits=actor(x), validate_args=False)
                action = dist.sample()
                seen[t], acts[t], densities[t] = x, action, dist.log_prob(action)
                values[t] = critic(x).squeeze(1)
            obs, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[t] = torch.from_numpy(reward.astype(np.float32))
            ends[t] = torch.from_numpy((terminated | truncated).astype(np.float32))
        done += shared.HORIZON * n
        with torch.no_grad():
            ahead, trace = critic(torch.from_numpy(obs)).squeeze(1), torch.zeros(n)
            for t in reversed(range(shared.HORIZON)):
                on = shared.DISCOUNT * (1 - ends[t])
                trace = rewards[t] + on * ahead - values[t] + on * shared.LAMBDA * trace
                gains[t], ahead = trace, values[t]
            aims = gains + values
        flat = [a.flatten(0, 1) for a in (seen, acts, densities, gains, aims)]
        for _ in range(shared.EPOCHS):
            order: Any = torch.randperm(shared.HORIZON * n)
            for part in order.split(shared.HORIZON * n // shared.MINIBATCHES):
                step(*(a[part] for a in flat))
