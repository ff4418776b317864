"""What the benchmark of sweeps asks of the peer is what the spec asks of us."""

import pearl
from benchmarks import sweep
from benchmarks.peers_workloads import LEARNING_STARTS, WORKLOADS


def test_the_peer_has_the_network_batch_ratio_steps_and_evaluations_of_the_spec():
    system, load = pearl.load(sweep.SPEC), WORKLOADS["W1x8"]
    a, t = system.algorithm, system.train
    assert (a.env, a.num_envs, tuple(a.hidden), a.batch_size) == (
        *(load.env, load.envs, load.hidden, load.batch),
    )
    assert (a.replay_ratio, a.learning_starts) == (1, LEARNING_STARTS)
    assert t.steps == sweep.STEPS
    assert (t.evaluate_every, t.evaluate_episodes, t.final_episodes) == (
        *(sweep.EVALUATE_EVERY, sweep.EPISODES, sweep.FINAL),
    )
