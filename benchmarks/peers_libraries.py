"""One run of one library on one workload: env steps per CPU-second once it is warm.

Each is imported on use, so that this runs in the interpreter of the library it measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.peers_workloads import TARGET_EVERY, TAU, WARM, Workload

Changes = dict[str, object]
GYMNASIUM: Changes = {"limits.variants": {"env_step": ["gymnasium"]}}
PRIORITISED: Changes = {"algorithm.replay.kind": "prioritised", "algorithm.double": True}


def ours(changes: Changes) -> Callable[[Workload, int], float]:
    def rate(load: Workload, seed: int) -> float:
        import pearl

        run = pearl.compile(load.ours(), set=changes, seed=seed).train()
        assert run.env_steps_per_cpu_s is not None
        return run.env_steps_per_cpu_s

    return rate


def _stable(name: str) -> Callable[[Workload, int], float]:
    """stable-baselines3, and sbx, which has its interface over JAX."""

    def rate(load: Workload, seed: int) -> float:
        import gymnasium
        import numpy as np
        import torch
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.noise import NormalActionNoise
        from stable_baselines3.common.vec_env import DummyVecEnv

        class Meter(BaseCallback):
            begin: tuple[int, float] | None = None

            def _on_step(self) -> bool:
                if self.begin is None and self.num_timesteps > WARM:
                    self.begin = (self.num_timesteps, time.process_time())
                return True

        settings: dict[str, Any] = {
            "seed": seed,
            "gamma": 0.99,
            "learning_rate": load.learning_rate,
            "batch_size": load.batch,
            "buffer_size": load.capacity,
            "learning_starts": 1_000,
            "train_freq": 1,
            "gradient_steps": load.envs,
        }
        if name == "sb3":
            import stable_baselines3 as library

            activation: Any = torch.nn.ReLU
            settings["device"] = "cpu"
        else:
            import flax.linen
            import sbx as library

            activation = flax.linen.relu
        torch.set_num_threads(1)
        settings["policy_kwargs"] = {"net_arch": list(load.hidden), "activation_fn": activation}
        steps, meter = load.peer_steps[name], Meter()
        envs = DummyVecEnv([lambda: gymnasium.make(load.env)] * load.envs)
        if load.algorithm == "dqn":
            settings |= {
                "target_update_interval": TARGET_EVERY,
                "exploration_initial_eps": 1.0,
                "exploration_final_eps": 0.05,
                "exploration_fraction": 5_000 / steps,
            }
            model = library.DQN("MlpPolicy", envs, **settings)
        else:
            noise = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
            model = library.DDPG("MlpPolicy", envs, tau=TAU, action_noise=noise, **settings)
        model.learn(steps, callback=meter)
        assert meter.begin is not None
        at, since = meter.begin
        return float((model.num_timesteps - at) / (time.process_time() - since))

    return rate


def eager(load: Workload, seed: int) -> float:
    """DQN written plainly in eager torch over gymnasium's vector environment: what a single-file
    implementation reaches."""
    import gymnasium
    import numpy as np
    import torch
    from gymnasium.vector import AutoresetMode, SyncVectorEnv
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random, n = np.random.default_rng(seed), load.envs
    env = SyncVectorEnv(
        [lambda: gymnasium.make(load.env)] * n, autoreset_mode=AutoresetMode.SAME_STEP
    )
    obs, _ = env.reset(seed=seed)
    width, actions = obs.shape[1], 2

    def network() -> nn.Sequential:
        a, b = load.hidden
        parts = (nn.Linear(width, a), nn.ReLU(), nn.Linear(a, b), nn.ReLU(), nn.Linear(b, actions))
        return nn.Sequential(*parts)

    q, target = network(), network()
    target.load_state_dict(q.state_dict())
    optimiser = torch.optim.Adam(q.parameters(), lr=load.learning_rate)
    held, following = np.zeros((2, load.capacity, width), np.float32)
    chosen = np.zeros(load.capacity, np.int64)
    rewards, ends = np.zeros((2, load.capacity), np.float32)
    done = filled = updates = 0
    begin: tuple[int, float] | None = None
    while done < load.peer_steps["eager"]:
        if random.random() < max(0.05, 1.0 - 0.95 * done / 5_000):
            action = random.integers(0, actions, n)
        else:
            with torch.no_grad():
                action = q(torch.from_numpy(obs)).argmax(1).numpy()
        seen, reward, terminated, truncated, infos = env.step(action)
        successor = seen.copy()
        for e in np.flatnonzero(terminated | truncated):
            successor[e] = infos["final_obs"][e]
        rows = (np.arange(n) + done) % load.capacity
        held[rows], following[rows], chosen[rows] = obs, successor, action
        rewards[rows], ends[rows] = reward, terminated
        obs, done, filled = seen, done + n, min(filled + n, load.capacity)
        if begin is None and done > WARM:
            begin = (done, time.process_time())
        if done <= 1_000:
            continue
        for _ in range(n):
            drawn = random.integers(0, filled, load.batch)
            x, after, r, end = (
                torch.from_numpy(a[drawn]) for a in (held, following, rewards, ends)
            )
            with torch.no_grad():
                aim = r + 0.99 * (1 - end) * target(after).max(1).values
            value = q(x).gather(1, torch.from_numpy(chosen[drawn]).unsqueeze(1)).squeeze(1)
            loss = nn.functional.mse_loss(value, aim)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            updates += 1
            if updates % TARGET_EVERY == 0:
                target.load_state_dict(q.state_dict())
    assert begin is not None
    return (done - begin[0]) / (time.process_time() - begin[1])


def products(own: bool) -> Callable[[Workload, int], float]:
    """Gradient steps per CPU-second if one were nothing but its matrix products: the same shapes,
    preallocated, by our own tiles or by the faster of numpy's BLAS and torch's."""

    def rate(load: Workload, seed: int) -> float:
        import numpy as np
        import torch

        from pearl import load as read
        from pearl.algorithms import algorithm
        from pearl_devices.primitives.products import affine
        from pearl_devices.work import products as shapes

        torch.set_num_threads(1)
        random, system = np.random.default_rng(seed), read(load.ours())
        update = algorithm(load.algorithm).graph(system).task("update").kernel
        made = [
            [np.asarray(random.normal(size=s), np.float32) for s in ((m, k), (k, n), (m, n), n)]
            for m, k, n in shapes(update)
        ]
        tensors = [[torch.from_numpy(array) for array in one] for one in made]
        lists: list[Callable[[], object]] = [
            lambda: [np.dot(a, b, out=out) for a, b, out, _ in made],
            lambda: [torch.mm(a, b, out=out) for a, b, out, _ in tensors],
        ]
        if own:
            lists = [lambda: [affine(a, b, bias, out, 0) for a, b, out, bias in made]]
        best = 0.0
        for _ in range(9):
            for run in lists:
                run()
                begin, count = time.process_time(), 0
                while time.process_time() - begin < 0.1:
                    run()
                    count += 1
                best = max(best, count / (time.process_time() - begin))
        return best

    return rate


RUNS: dict[str, Callable[[Workload, int], float]] = {
    "ours": ours({}),
    "ours, gymnasium": ours(GYMNASIUM),
    "ours, prioritised": ours(PRIORITISED),
    "sb3": _stable("sb3"),
    "sbx": _stable("sbx"),
    "eager": eager,
    "products": products(own=False),
    "products, ours": products(own=True),
}
PEERS = {"sb3": "stable-baselines3", "sbx": "sbx-rl", "eager": "torch and gymnasium"}
"""Rows that run in the interpreter given with --peer (else this one) → what they need there."""
