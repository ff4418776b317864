"""The strongest rival: the whole training loop, environments included, as one XLA program.

Written for this benchmark in the style of PureJaxRL (Lu et al. 2022): `scan` over iterations, the
replay a ring on the device, one donated state. Needs jax and optax. Same hyper-parameters as for
everyone else; the environments are the classic equations in float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from benchmarks import peers_workloads as shared
from benchmarks.peers_workloads import Workload

CALLS = 3
"""Calls of the compiled program that are counted, after one that compiles and warms up."""
Body = Callable[[Any, Any], tuple[Any, Any]]


def run(load: Workload, seed: int) -> float:
    """Env steps per CPU-second; compilation is not counted."""
    import jax
    from jax import lax

    build = {"dqn": _dqn, "ddpg": _actor_critic, "sac": _actor_critic, "ppo": _ppo}[load.algorithm]
    body, state = build(load, jax.random.key(seed))
    per = load.envs * (shared.HORIZON if load.algorithm == "ppo" else 1)  # env steps
    rounds = max(load.peer_steps["xla"] // (per * CALLS), 1)
    program = jax.jit(lambda s: lax.scan(body, s, None, rounds), donate_argnums=0)
    state, episodes = jax.block_until_ready(program(state))
    begin = time.process_time()
    for _ in range(CALLS):
        state, episodes = jax.block_until_ready(program(state))
    spent = time.process_time() - begin
    if int(episodes.sum()) == 0:
        raise RuntimeError("no episode ended: the program does not step its environments")
    return CALLS * rounds * per / spent


def _cartpole(envs: int) -> tuple[Any, Any, Any]:
    """(start, see, step) of CartPole-v1; a state is (n, 4) and the steps of the episode."""
    from jax import numpy as jnp
    from jax import random

    def fresh(key: Any) -> Any:
        return random.uniform(key, (envs, 4), minval=-0.05, maxval=0.05)

    def step(state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        at, count = state
        x, v, angle, spin = at.T
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        push = (jnp.where(action == 1, 10.0, -10.0) + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * turn * cos / 1.1
        after = jnp.stack((x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn))
        after, count = after.T, count + 1
        ended = (jnp.abs(after[:, 0]) > 2.4) | (jnp.abs(after[:, 2]) > 12 * jnp.pi / 180)
        over = ended | (count >= 500)
        following = jnp.where(over[:, None], fresh(key), after), jnp.where(over, 0, count)
        return following, after, jnp.ones(envs), ended, over

    return lambda key: (fresh(key), jnp.zeros(envs, jnp.int32)), lambda state: state[0], step


def _pendulum(envs: int) -> tuple[Any, Any, Any]:
    """(start, see, step) of Pendulum-v1; a state is (n, 2) and the steps of the episode."""
    from jax import numpy as jnp
    from jax import random

    widest = jnp.array((jnp.pi, 1.0))

    def fresh(key: Any) -> Any:
        return random.uniform(key, (envs, 2), minval=-1.0, maxval=1.0) * widest

    def view(at: Any) -> Any:
        return jnp.stack((jnp.cos(at[:, 0]), jnp.sin(at[:, 0]), at[:, 1]), 1)

    def step(state: Any, action: Any, key: Any) -> tuple[Any, Any, Any, Any, Any]:
        at, count = state
        angle, spin = at.T
        torque = jnp.clip(action[:, 0], -2.0, 2.0)
        off = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        reward = -(off**2 + 0.1 * spin**2 + 0.001 * torque**2)
        spin = jnp.clip(spin + (15 * jnp.sin(angle) + 3 * torque) * 0.05, -8, 8)
        after, count = jnp.stack((angle + 0.05 * spin, spin), 1), count + 1
        over = count >= 200
        following = jnp.where(over[:, None], fresh(key), after), jnp.where(over, 0, count)
        return following, view(after), reward, jnp.zeros(envs, bool), over

    return lambda key: (fresh(key), jnp.zeros(envs, jnp.int32)), lambda s: view(s[0]), step


def _network(key: Any, widths: tuple[int, ...]) -> Any:
    from jax import numpy as jnp
    from jax import random

    layers = []
    for part, (a, b) in zip(random.split(key, len(widths) - 1), pairwise(widths), strict=True):
        layers.append((random.uniform(part, (a, b), minval=-1, maxval=1) * a**-0.5, jnp.zeros(b)))
    return layers


def _apply(network: Any, x: Any, activation: Any) -> Any:
    for weight, bias in network[:-1]:
        x = activation(x @ weight + bias)
    return x @ network[-1][0] + network[-1][1]


def _ring(load: Workload, obs: int, action: tuple[int, ...], kind: Any) -> tuple[Any, Any, int]:
    """(arrays, put, capacity): a ring of whole vector steps."""
    from jax import lax
    from jax import numpy as jnp

    size = load.capacity // load.envs * load.envs
    arrays = (
        jnp.zeros((size, obs)), jnp.zeros((size, *action), kind), jnp.zeros(size),
        jnp.zeros((size, obs)), jnp.zeros(size),
    )  # fmt: skip

    def put(ring: Any, done: Any, *rows: Any) -> Any:
        at = done % size
        return tuple(
            lax.dynamic_update_slice_in_dim(a, r.astype(a.dtype), at, 0)
            for a, r in zip(ring, rows, strict=True)
        )

    return arrays, put, size


def _follow(target: Any, online: Any, share: Any) -> Any:
    import jax

    return jax.tree.map(lambda t, o: t + share * (o - t), target, online)


def _dqn(load: Workload, key: Any) -> tuple[Body, Any]:
    import jax
    import optax
    from jax import lax, random
    from jax import numpy as jnp

    n = load.envs
    start, see, step = _cartpole(n)
    ring, put, size = _ring(load, 4, (), jnp.int32)
    adam, (first, last) = optax.adam(load.learning_rate), shared.EPSILON

    def values(network: Any, x: Any) -> Any:
        return _apply(network, x, jax.nn.relu)

    def iteration(carry: Any, _: Any) -> tuple[Any, Any]:
        state, ring, q, target, moments, done, key = carry
        key, for_share, for_random, for_env, for_batches = random.split(key, 5)
        share = jnp.clip(first - (first - last) * done / load.explore_steps, last, first)
        obs = see(state)
        action = jnp.where(
            random.uniform(for_share, (n,)) < share,
            random.randint(for_random, (n,), 0, 2),
            values(q, obs).argmax(1),
        )
        state, after, reward, ended, over = step(state, action, for_env)
        ring, done = put(ring, done, obs, action, reward, after, ended), done + n

        def learn(carry: Any, key: Any) -> tuple[Any, Any]:
            q, moments = carry
            rows = random.randint(key, (load.batch,), 0, jnp.minimum(done, size))
            x, chosen, gained, ahead, end = (a[rows] for a in ring)
            aim = gained + shared.DISCOUNT * (1 - end) * values(target, ahead).max(1)

            def loss(q: Any) -> Any:
                here = jnp.take_along_axis(values(q, x), chosen[:, None], 1)[:, 0]
                return jnp.square(here - aim).mean()

            moved, moments = adam.update(jax.grad(loss)(q), moments)
            return (optax.apply_updates(q, moved), moments), None

        (q, moments), _ = lax.scan(learn, (q, moments), random.split(for_batches, n))
        target = _follow(target, q, jnp.where(done % load.target_every < n, 1.0, 0.0))
        return (state, ring, q, target, moments, done, key), over.sum()

    key, for_start, for_network = random.split(key, 3)
    q = _network(for_network, (4, *load.hidden, 2))
    copy = jax.tree.map(jnp.copy, q)
    return iteration, (start(for_start), ring, q, copy, adam.init(q), jnp.array(0), key)


def _actor_critic(load: Workload, key: Any) -> tuple[Body, Any]:
    """DDPG, or SAC: two critics, a stochastic actor, a temperature that is learned."""
    import jax
    import optax
    from jax import lax, random
    from jax import numpy as jnp

    n, soft = load.envs, load.algorithm == "sac"
    start, see, step = _pendulum(n)
    ring, put, size = _ring(load, 3, (1,), jnp.float32)
    adam = optax.adam(load.learning_rate)

    def act(actor: Any, x: Any, key: Any) -> tuple[Any, Any]:
        out = _apply(actor, x, jax.nn.relu)
        if not soft:
            return 2 * jnp.tanh(out), 0.0
        mean, log_std = out[:, :1], jnp.clip(out[:, 1:], -20, 2)
        noise = random.normal(key, mean.shape)
        raw = mean + jnp.exp(log_std) * noise
        bent = jnp.log(1 - jnp.tanh(raw) ** 2 + 1e-6)
        density = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi) - bent
        return 2 * jnp.tanh(raw), density.sum(1)

    def judge(critics: Any, x: Any, action: Any) -> Any:
        both = jnp.concatenate((x, action), 1)
        return jnp.stack([_apply(c, both, jax.nn.relu)[:, 0] for c in critics])

    def learn(carry: Any, given: Any, ring: Any, done: Any) -> tuple[Any, Any]:
        (actor, critics, targets, heat), moments = carry
        for_rows, for_next, for_own = random.split(given, 3)
        rows = random.randint(for_rows, (load.batch,), 0, jnp.minimum(done, size))
        x, chosen, gained, ahead, end = (a[rows] for a in ring)
        following, density = act(actor if soft else targets[0], ahead, for_next)
        value = judge(targets[1], ahead, following).min(0) - jnp.exp(heat) * density * soft
        aim = gained + shared.DISCOUNT * (1 - end) * value

        def critic_loss(critics: Any) -> Any:
            return jnp.square(judge(critics, x, chosen) - aim).mean(1).sum()

        moved, of_critics = adam.update(jax.grad(critic_loss)(critics), moments[1])
        critics = optax.apply_updates(critics, moved)

        def actor_loss(actor: Any) -> tuple[Any, Any]:
            own, density = act(actor, x, for_own)
            value = judge(critics, x, own).min(0)
            return (jnp.exp(heat) * density * soft - value).mean(), jnp.mean(density)

        slope, mean = jax.grad(actor_loss, has_aux=True)(actor)
        moved, of_actor = adam.update(slope, moments[0])
        actor = optax.apply_updates(actor, moved)
        of_heat = moments[2]
        if soft:
            moved, of_heat = adam.update(-(mean - 1.0), moments[2])
            heat = heat + moved
        targets = (
            targets[0] if soft else _follow(targets[0], actor, shared.TAU),
            _follow(targets[1], critics, shared.TAU),
        )
        return ((actor, critics, targets, heat), (of_actor, of_critics, of_heat)), None

    def iteration(carry: Any, _: Any) -> tuple[Any, Any]:
        state, ring, learner, done, key = carry
        key, for_act, for_env, for_batches = random.split(key, 4)
        obs = see(state)
        action, _ = act(learner[0][0], obs, for_act)
        if not soft:
            noise = 2 * shared.NOISE * random.normal(for_act, action.shape)
            action = jnp.clip(action + noise, -2, 2)
        state, after, reward, ended, over = step(state, action, for_env)
        ring, done = put(ring, done, obs, action, reward, after, ended), done + n
        keys = random.split(for_batches, n)
        learner, _ = lax.scan(lambda c, k: learn(c, k, ring, done), learner, keys)
        return (state, ring, learner, done, key), over.sum()

    key, for_start, for_actor, *for_critics = random.split(key, 5)
    actor = _network(for_actor, (3, *load.hidden, 2 if soft else 1))
    critics = [_network(k, (4, *load.hidden, 1)) for k in for_critics[: 2 if soft else 1]]
    heat = jnp.array(0.0)
    targets = jax.tree.map(jnp.copy, (actor, critics))
    moments = (adam.init(actor), adam.init(critics), adam.init(heat))
    learner = ((actor, critics, targets, heat), moments)
    return iteration, (start(for_start), ring, learner, jnp.array(0), key)


def _ppo(load: Workload, key: Any) -> tuple[Body, Any]:
    import jax
    import optax
    from jax import lax, random
    from jax import numpy as jnp

    n, rows = load.envs, load.envs * shared.HORIZON
    start, see, step = _cartpole(n)
    adam = optax.chain(
        optax.clip_by_global_norm(shared.MAX_NORM), optax.adam(load.learning_rate, eps=1e-5)
    )

    def logs(nets: Any, x: Any) -> Any:
        return jax.nn.log_softmax(_apply(nets[0], x, jnp.tanh))

    def value(nets: Any, x: Any) -> Any:
        return _apply(nets[1], x, jnp.tanh)[:, 0]

    def pick(table: Any, action: Any) -> Any:
        return jnp.take_along_axis(table, action[:, None], 1)[:, 0]

    def iteration(carry: Any, _: Any) -> tuple[Any, Any]:
        state, nets, moments, key = carry

        def vector_step(carry: Any, key: Any) -> tuple[Any, Any]:
            state = carry
            for_act, for_env = random.split(key)
            obs = see(state)
            table = logs(nets, obs)
            action = random.categorical(for_act, table)
            held = obs, action, pick(table, action), value(nets, obs)
            state, _, reward, _, over = step(state, action, for_env)
            return state, (*held, reward, over.astype(jnp.float32))

        key, for_rollout, for_epochs = random.split(key, 3)
        state, seen = lax.scan(vector_step, state, random.split(for_rollout, shared.HORIZON))
        obs, action, before, values, reward, over = seen

        def back(carry: Any, row: Any) -> tuple[Any, Any]:
            trace, ahead = carry
            gained, here, end = row
            on = shared.DISCOUNT * (1 - end)
            trace = gained + on * ahead - here + on * shared.LAMBDA * trace
            return (trace, here), trace

        last = (jnp.zeros(n), value(nets, see(state)))
        _, gains = lax.scan(back, last, (reward, values, over), reverse=True)
        flat = [a.reshape(rows, *a.shape[2:]) for a in (obs, action, before, gains, gains + values)]

        def minibatch(carry: Any, part: Any) -> tuple[Any, Any]:
            nets, moments = carry
            x, chosen, before, gain, aim = part
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)

            def loss(nets: Any) -> Any:
                table = logs(nets, x)
                ratio = jnp.exp(pick(table, chosen) - before)
                held = jnp.clip(ratio, 1 - shared.CLIP, 1 + shared.CLIP)
                surrogate = jnp.minimum(ratio * gain, held * gain).mean()
                entropy = -(jnp.exp(table) * table).sum(1).mean()
                return (
                    -surrogate
                    - shared.ENTROPY * entropy
                    + shared.VALUE * ((value(nets, x) - aim) ** 2).mean()
                )

            moved, moments = adam.update(jax.grad(loss)(nets), moments)
            return (optax.apply_updates(nets, moved), moments), None

        def epoch(carry: Any, key: Any) -> tuple[Any, Any]:
            order = random.permutation(key, rows)
            parts = [a[order].reshape(shared.MINIBATCHES, -1, *a.shape[1:]) for a in flat]
            return lax.scan(minibatch, carry, parts)[0], None

        (nets, moments), _ = lax.scan(
            epoch, (nets, moments), random.split(for_epochs, shared.EPOCHS)
        )
        return (state, nets, moments, key), over.sum()

    key, for_start, for_actor, for_critic = random.split(key, 4)
    nets = (_network(for_actor, (4, *load.hidden, 2)), _network(for_critic, (4, *load.hidden, 1)))
    return iteration, (start(for_start), nets, adam.init(nets), key)
