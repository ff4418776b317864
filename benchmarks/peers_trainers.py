"""One run of one library on one workload: env steps per CPU-second once it is warm.

Each is imported on use, so that this runs in the interpreter of the library it measures.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from benchmarks import peers_workloads as shared
from benchmarks.peers_workloads import Clock, Workload


def stable(name: str, load: Workload, seed: int) -> float:
    """stable-baselines3, and sbx, which has its interface over JAX."""
    import numpy as np
    import torch
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import DummyVecEnv

    clock, steps = Clock(shared.WARM), load.peer_steps[name]
    torch.set_num_threads(1)
    if name == "sb3":
        import stable_baselines3 as library

        relu: Any = torch.nn.ReLU
        tanh: Any = torch.nn.Tanh
    else:
        import flax.linen
        import sbx as library

        relu, tanh = flax.linen.relu, flax.linen.tanh
    envs = DummyVecEnv([lambda: clock.env(load.env)] * load.envs)
    settings: dict[str, Any] = {
        "seed": seed, "gamma": shared.DISCOUNT, "learning_rate": load.learning_rate,
        "policy_kwargs": {"net_arch": list(load.hidden), "activation_fn": relu},
    }  # fmt: skip
    if name == "sb3":
        settings["device"] = "cpu"
    if load.algorithm == "ppo":
        settings["policy_kwargs"]["activation_fn"] = tanh
        settings |= {
            "n_steps": shared.HORIZON, "n_epochs": shared.EPOCHS, "batch_size": load.batch,
            "gae_lambda": shared.LAMBDA, "clip_range": shared.CLIP, "ent_coef": shared.ENTROPY,
            "vf_coef": shared.VALUE, "max_grad_norm": shared.MAX_NORM,
        }  # fmt: skip
    else:
        settings |= {
            "batch_size": load.batch, "buffer_size": load.capacity,
            "learning_starts": shared.LEARNING_STARTS, "train_freq": 1, "gradient_steps": load.envs,
        }  # fmt: skip
    if load.algorithm == "dqn":
        settings |= {
            "target_update_interval": load.target_every,
            "exploration_initial_eps": shared.EPSILON[0],
            "exploration_final_eps": shared.EPSILON[1],
            "exploration_fraction": load.explore_steps / steps,
        }
    elif load.algorithm in ("ddpg", "sac"):
        settings["tau"] = shared.TAU
    if load.algorithm == "ddpg":
        settings["action_noise"] = NormalActionNoise(np.zeros(1), np.full(1, shared.NOISE))
    getattr(library, load.algorithm.upper())("MlpPolicy", envs, **settings).learn(steps)
    return clock.rate()


def tianshou(load: Workload, seed: int) -> float:
    """tianshou's collector and trainer, DQN with prioritised replay."""
    warnings.filterwarnings("ignore")
    import gymnasium
    import numpy as np
    import torch
    from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, PrioritizedVectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    clock, steps = Clock(shared.WARM), load.peer_steps["tianshou"]
    envs = DummyVectorEnv([lambda: clock.env(load.env)] * load.envs)
    space = gymnasium.make(load.env)
    actions = space.action_space
    width = space.observation_space.shape
    net = Net(state_shape=width, action_shape=int(actions.n), hidden_sizes=list(load.hidden))  # type: ignore[attr-defined]
    policy = DiscreteQLearningPolicy(
        model=net, action_space=actions, eps_training=shared.EPSILON[0]
    )
    learner = DQN(
        policy=policy, optim=AdamOptimizerFactory(lr=load.learning_rate), gamma=shared.DISCOUNT,
        target_update_freq=load.target_every, is_double=False,
    )  # fmt: skip
    replay = PrioritizedVectorReplayBuffer(
        load.capacity, load.envs, alpha=shared.ALPHA, beta=shared.BETA
    )
    collector = Collector(learner, envs, replay, exploration_noise=True)

    def explore(epoch: int, done: int) -> None:
        first, last = shared.EPSILON
        policy.set_eps_training(max(last, first + (last - first) * done / load.explore_steps))

    collector.reset()
    collector.collect(n_step=shared.LEARNING_STARTS // load.envs * load.envs, random=True)
    learner.run_training(
        OffPolicyTrainerParams(
            training_collector=collector, max_epochs=1,
            epoch_num_steps=steps - shared.LEARNING_STARTS, collection_step_num_env_steps=load.envs,
            batch_size=load.batch, update_step_num_gradient_steps_per_sample=1.0,
            training_fn=explore, verbose=False, show_progress=False,
        ),
    )  # fmt: skip
    return clock.rate()


SHARED_CLOCK = Clock(shared.LEARNING_STARTS + 250)
"""RLlib's. Of this module, because RLlib pickles what makes its environments, and a clock inside a
closure would be copied. At about a hundred env steps a second a longer warm-up would take most of
the benchmark's time."""


def clocked(settings: Mapping[str, Any]) -> Any:
    """The environment that `settings` names, on that clock."""
    return SHARED_CLOCK.env(settings["id"])


def rllib(load: Workload, seed: int) -> float:
    """RLlib's DQN, everything in this process: no remote runner, no remote learner."""
    os.environ.update(RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    warnings.filterwarnings("ignore")
    import logging

    import ray
    import torch
    from ray import tune
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(
        num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
        object_store_memory=2**28,
    )  # fmt: skip
    torch.set_num_threads(1)
    clock, steps = SHARED_CLOCK, load.peer_steps["rllib"]
    tune.register_env("clocked", clocked)
    model = DefaultModelConfig(
        fcnet_hiddens=list(load.hidden), fcnet_activation="relu", head_fcnet_hiddens=[]
    )
    first, last = shared.EPSILON
    config = (
        DQNConfig()
        .environment("clocked", env_config={"id": load.env})
        .env_runners(
            num_env_runners=0, num_envs_per_env_runner=load.envs, rollout_fragment_length=1
        )
        .learners(num_learners=0)
        .debugging(seed=seed, log_level="ERROR")
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=250)
        .rl_module(model_config=model)
        .training(
            lr=load.learning_rate,
            gamma=shared.DISCOUNT,
            target_network_update_freq=load.target_every,
            double_q=False,
            dueling=False,
            num_atoms=1,
            noisy=False,
            epsilon=[(0, first), (load.explore_steps, last)],
            grad_clip=None,
            n_step=1,
            train_batch_size_per_learner=load.batch,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": load.capacity},
            num_steps_sampled_before_learning_starts=shared.LEARNING_STARTS,
            # steps trained on for a step sampled: as many as a batch, so one gradient step each
            training_intensity=float(load.batch),
        )
    )
    learner = config.build_algo()
    while clock.steps < steps:
        learner.train()
    rate = clock.rate()
    ray.shutdown()
    return rate
