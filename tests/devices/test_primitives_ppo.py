"""PPO and A2C: acting, rollouts, advantages and gradient steps against float64 references."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pearl.testing.kernel_buffers import copied, fill_arrays
from pearl_devices import Buffers, Kernel, cpu, kernel
from pearl_devices.kernels.counting import parameters
from pearl_devices.primitives.math import rng, tanh
from pearl_devices.primitives.updates import policies, ppo
from tests.devices.test_primitives_nets import rate as rate_after

Layers = tuple[int, ...]
DISCRETE: dict[str, Any] = {"envs": 4, "obs": 4, "act": 0}
CONTINUOUS: dict[str, Any] = {"envs": 4, "obs": 3, "act": 2}
FACTORED: dict[str, Any] = {"envs": 4, "obs": 3, "act": 2, "choices": 5}
CHOICES = (2, 3)
SPACES = pytest.mark.parametrize(
    "spaces", [DISCRETE, CONTINUOUS, FACTORED], ids=["discrete", "continuous", "factored"]
)
HORIZON = 16


def sizes(spaces: dict[str, Any], hidden: Layers = (24, 16), tanh: int = 1) -> dict[str, Any]:
    outputs = spaces.get("choices") or spaces["act"] or 3
    nets = {"actor": (spaces["obs"], *hidden, outputs)}
    nets["critic"] = (spaces["obs"], *hidden, 1)
    return {**spaces, **nets, "tanh": tanh, "horizon": HORIZON}


def only(given: dict[str, Any], *left_out: str) -> dict[str, Any]:
    return {n: size for n, size in given.items() if n not in left_out}


def update(
    spaces: dict[str, Any],
    name: str = "ppo",
    epochs: int = 2,
    minibatches: int = 4,
    extra: dict[str, int] | None = None,
    **more: Any,
) -> Kernel:
    rows = spaces["envs"] * HORIZON
    steps: dict[str, Any] = {"epochs": epochs, "steps": epochs * minibatches, **(extra or {})}
    return kernel(
        f"update.{name}",
        {**sizes(spaces, **more), **steps, "batch": rows // minibatches},
        program=f"pearl.algorithms.{name}:losses",
    )


def acting(spaces: dict[str, Any], **more: Any) -> Kernel:
    return kernel("inference.ppo", only(sizes(spaces, **more), "critic", "horizon"))


def judging(spaces: dict[str, Any], **more: Any) -> Kernel:
    return kernel("gae", only(sizes(spaces, **more), "actor"))


CARTPOLE = {**sizes(DISCRETE), "actor": (4, 24, 16, 2), "epochs": 2, "batch": 16, "steps": 8}
# tanh


def test_the_fast_tanh_errs_by_less_than_4e_7() -> None:
    x = np.concatenate([np.linspace(-12, 12, 2_000_001), np.geomspace(1e-30, 1, 1000), [0.0]])
    x = x.astype(np.float32)
    fast = x.copy()
    tanh.tanh_in_place(fast)
    true = np.tanh(x.astype(np.float64))
    assert np.abs(fast - true).max() < 4e-7
    whole = true != 0
    assert np.abs(fast[whole] / true[whole] - 1).max() < 4e-7
    assert np.abs(fast).max() <= 1.0
    ends = np.array([np.inf, -np.inf, np.nan, 1e30], np.float32)
    tanh.tanh_in_place(ends)
    np.testing.assert_allclose(ends, [1, -1, np.nan, 1], atol=3e-7)


def test_the_fast_tanh_gives_the_same_bits_wherever_a_number_stands() -> None:
    x = np.random.default_rng(0).normal(size=1003).astype(np.float32)
    whole = x.copy()
    tanh.tanh_in_place(whole)
    for size in (1, 2, 3, 7, 8, 15, 16, 33):
        piece = x[100 : 100 + size].copy()
        tanh.tanh_in_place(piece)
        assert np.array_equal(piece, whole[100 : 100 + size])


# Acting


@SPACES
@pytest.mark.parametrize("tanh", [0, 1])
@pytest.mark.parametrize("variant", ["native", "torch"])
def test_actions_are_drawn_with_the_numbers_of_the_stream(
    spaces: dict[str, Any], variant: str, tanh: int
) -> None:
    """By inverting the distribution function; densities are those of torch."""
    k = acting({**spaces, "envs": 40}, hidden=(6, 6, 6, 6), tanh=tanh)
    b, act = fill_arrays([k]), spaces["act"]
    b["env.obs"][:] = np.random.default_rng(0).normal(size=b["env.obs"].shape)
    b["policy.actor"][:] *= 3
    b["rng.inference"][1] = 3
    base = np.uint64(rng.stream_base(b["rng.inference"][0], np.uint64(3)))
    if "choices" in spaces:
        b["act.choices"][:] = CHOICES
    elif act:
        b["policy.actor"][-2:] = math.log(0.5), math.log(2.0)
        b["act.low"][:], b["act.high"][:] = (-2.0, 0.0), (2.0, 1.0)
    cpu.bind(k, variant, b)()
    assert b["rng.inference"][1] == 4
    out = _network(b["policy.actor"], k.layers(), torch.tensor(b["env.obs"]).double(), bool(tanh))
    if act and "choices" not in spaces:
        noise, std = np.zeros(80, np.float32), np.array([0.5, 2.0])
        rng.normals(base, 0, noise)
        sample = out.numpy() + std * noise.reshape(40, 2)
        np.testing.assert_allclose(b["act.sample"], sample, rtol=1e-5, atol=1e-6)
        normal: Any = torch.distributions.Normal(out, torch.tensor(std))
        exact = normal.log_prob(torch.tensor(sample)).sum(1)
        low, half = b["act.low"], 0.5 * (b["act.high"] - b["act.low"])
        scaled = np.clip(low + half + half * sample, low, b["act.high"])
        np.testing.assert_allclose(b["act.action"], scaled, rtol=1e-5, atol=1e-6)
        assert (scaled != low + half + half * sample).any()
    else:
        parts = out.split(CHOICES, 1) if act else [out]
        taken, exact = b["act.action"].reshape(40, -1), torch.zeros(40)
        for c, z in enumerate(parts):
            shares = [rng.uniform(base, n * len(parts) + c) for n in range(40)]
            below = torch.softmax(z, 1).cumsum(1) < torch.tensor(shares)[:, None]
            assert taken[:, c].tolist() == below.sum(1).tolist()
            assert set(taken[:, c]) == set(range(z.shape[1]))
            exact = (
                exact + torch.log_softmax(z, 1).gather(1, torch.tensor(taken[:, c : c + 1]))[:, 0]
            )
    np.testing.assert_allclose(b["act.log_prob"], exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", ["native", "torch"])
def test_a_component_without_both_bounds_is_not_scaled_and_clipped_by_the_one_it_has(
    variant: str,
) -> None:
    k = acting({**CONTINUOUS, "envs": 200})
    b = fill_arrays([k])
    b["policy.actor"][-2:] = 1.0
    b["act.low"][:], b["act.high"][:] = (-np.inf, 0.25), (np.inf, np.inf)
    cpu.bind(k, variant, b)()
    np.testing.assert_array_equal(b["act.action"][:, 0], b["act.sample"][:, 0])
    np.testing.assert_array_equal(b["act.action"][:, 1], b["act.sample"][:, 1].clip(0.25))
    assert (b["act.sample"][:, 1] < 0.25).any()
    assert np.isfinite(b["act.log_prob"]).all()
    mean = cpu.act(k, b["policy.actor"], b["env.obs"], b["act.low"], b["act.high"])
    exact = _network(b["policy.actor"], k.layers(), torch.tensor(b["env.obs"]).double(), True)
    np.testing.assert_allclose(mean[:, 0], exact[:, 0], atol=1e-5)
    np.testing.assert_allclose(mean[:, 1], exact[:, 1].clamp(min=0.25), atol=1e-5)


def test_greedy_actions_are_the_likeliest_or_the_mean_inside_the_bounds() -> None:
    k = acting(DISCRETE)
    params, obs = fill_arrays([k])["policy.actor"], np.random.default_rng(0).normal(size=(20, 4))
    logits = _network(params, k.layers(), torch.tensor(obs), True)
    chosen = cpu.act(k, params, obs.astype(np.float32))
    assert np.array_equal(chosen, logits.argmax(1))
    k = acting(FACTORED)
    params = fill_arrays([k])["policy.actor"]
    logits = _network(params, k.layers(), torch.tensor(obs[:, :3]), True)
    chosen = cpu.act(k, params, obs[:, :3].astype(np.float32), choices=CHOICES)
    assert np.array_equal(chosen, np.stack([z.argmax(1) for z in logits.split(CHOICES, 1)], 1))
    k = acting(CONTINUOUS)
    params, obs = 3 * fill_arrays([k])["policy.actor"], obs[:, :3]
    low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)
    mean = _network(params, k.layers(), torch.tensor(obs), True).numpy()
    half = 0.5 * (high - low)
    chosen = cpu.act(k, params, obs.astype(np.float32), low, high)
    np.testing.assert_allclose(chosen, np.clip(low + half + half * mean, low, high), atol=1e-5)
    assert (np.abs(mean) > 1).any()


def test_orthogonal_layers_are_orthogonal_and_the_last_has_its_own_gain() -> None:
    """Against Gram and Schmidt's columns of the same normal numbers."""
    layers = (3, 5, 5, 2)
    flat, random = policies.orthogonal_params(layers, 5, final_gain=0.01), np.random.default_rng(5)
    offset = 0
    for (i, o), gain in zip(pairwise(layers), (2**0.5, 2**0.5, 0.01), strict=True):
        given = random.normal(size=(max(i, o), min(i, o)))
        columns: list[Any] = []
        for column in given.T:
            rest = column - sum((c @ column) * c for c in columns)
            columns.append(rest / np.linalg.norm(rest))
        wanted = np.array(columns).T if i >= o else np.array(columns)
        w = flat[offset : offset + i * o].reshape(i, o)
        np.testing.assert_allclose(w, gain * wanted, rtol=1e-5, atol=1e-7)
        assert not flat[offset + i * o : offset + i * o + o].any()
        offset += i * o + o
    assert flat.size == offset


# Rollouts and advantages


def test_a_rollout_keeps_the_steps_in_order_and_begins_anew() -> None:
    k = kernel("rollout_insert", CONTINUOUS, horizon=3)
    b = fill_arrays([k])
    call = cpu.bind(k, "native", b)
    for t in range(4):
        for name in ("obs", "reward", "next_obs", "terminated", "truncated"):
            b[f"step.{name}"][:] = t
        b["step.action"][:], b["act.sample"][:], b["act.log_prob"][:] = 100, 10 + t, 20 + t
        call()
    assert b["rollout.obs"][:, 0, 0].tolist() == [3, 1, 2]
    assert b["rollout.action"][:, 0, 1].tolist() == [13, 11, 12]
    assert b["rollout.log_prob"][:, 3].tolist() == [23, 21, 22]
    assert b["rollout.truncated"][:, 1].tolist() == [3, 1, 2]
    assert b["rollout.at"][0] == 1


def judged(spaces: dict[str, Any], **more: Any) -> tuple[Kernel, Buffers]:
    """A rollout in which episodes end in every way, at its end too."""
    k = judging(spaces, **more)
    b, random = fill_arrays([k]), np.random.default_rng(2)
    for name in ("obs", "next_obs", "reward"):
        b[f"rollout.{name}"][:] = random.normal(size=b[f"rollout.{name}"].shape)
    b["rollout.terminated"][:] = random.random(b["rollout.terminated"].shape) < 0.15
    b["rollout.truncated"][:] = random.random(b["rollout.truncated"].shape) < 0.15
    b["rollout.terminated"][-1], b["rollout.truncated"][-1] = (1, 0, 1, 0), (0, 1, 1, 0)
    b["hyper.gae_lambda"][:] = 0.9
    return k, b


@pytest.mark.parametrize("variant", ["native", "torch"])
@pytest.mark.parametrize("tanh", [0, 1])
def test_advantages_are_the_sum_of_discounted_errors_to_the_end_of_the_episode(
    variant: str, tanh: int
) -> None:
    """Equation 16 of Schulman et al. 2016, summed forwards from each step."""
    k, b = judged({**DISCRETE, "envs": 4}, tanh=tanh)
    cpu.bind(k, variant, b)()
    layers, gamma, trace = k.layers("critic"), 0.97, 0.9

    def value(name: str) -> np.ndarray[Any, Any]:
        flat = torch.tensor(b[f"rollout.{name}"]).double().reshape(-1, 4)
        found = _network(b["policy.critic"], layers, flat, bool(tanh))
        return found.reshape(HORIZON, 4).numpy()

    now, after = value("obs"), value("next_obs")
    terminated, truncated = b["rollout.terminated"], b["rollout.truncated"]
    for n in range(4):
        for t in range(HORIZON):
            total, weight = 0.0, 1.0
            for s in range(t, HORIZON):
                over = terminated[s, n] or truncated[s, n]
                ahead = after[s, n] if over or s == HORIZON - 1 else now[s + 1, n]
                ahead = 0.0 if terminated[s, n] else ahead
                total += weight * (b["rollout.reward"][s, n] + gamma * ahead - now[s, n])
                weight *= gamma * trace
                if over:
                    break
            assert b["rollout.advantage"][t, n] == pytest.approx(total, abs=2e-5)
            assert b["rollout.returns"][t, n] == pytest.approx(total + now[t, n], abs=2e-5)
    np.testing.assert_allclose(b["rollout.value"], now, atol=1e-5)


@pytest.mark.parametrize("variant", ["native", "torch"])
@pytest.mark.parametrize("kept", [0, 4])
def test_returns_of_three_rewards_are_their_sums_to_the_end_of_the_episode_or_the_rollout(
    kept: int, variant: str
) -> None:
    """Mnih et al. 2016, summed forwards. With `kept`, each firing judges one vector step of a ring
    that holds no more than it needs."""
    envs, ahead, horizon, gamma = 3, 3, 7, 0.97
    spaces = {"envs": envs, "obs": 2, "act": 0}
    sizes: dict[str, Any] = {**spaces, "horizon": horizon, "tanh": 1, "critic": (2, 5, 1)}
    k = kernel("gae", sizes, ahead=ahead, **({"kept": kept} if kept else {}))
    b, random = fill_arrays([k]), np.random.default_rng(4)
    call, held = cpu.bind(k, variant, b), kept or horizon
    b["rollout.judged"][:], b["hyper.discount"][:] = 0, gamma
    for begun in (0, horizon):
        obs, after = random.normal(size=(2, horizon, envs, 2)).astype(np.float32)
        reward = random.normal(size=(horizon, envs)).astype(np.float32)
        ends = random.choice([0, 0, 0, 1, 2, 3], (horizon, envs))
        ends[-1] = 0, 2, 3
        value, follows = (
            _network(b["policy.critic"], (2, 5, 1), torch.tensor(x).double(), True)[..., 0].numpy()
            for x in (obs, after)
        )
        names = ("obs", "next_obs", "reward", "terminated", "truncated")
        data = dict(zip(names, (obs, after, reward, ends & 1, ends >> 1), strict=True))
        for t in range(horizon):
            for k_ in range(horizon) if not kept and t == 0 else range(t, min(t + kept, horizon)):
                for name, column in data.items():
                    b[f"rollout.{name}"][(begun + k_) % held] = column[k_]
            if kept or t == 0:
                call()
            row = 0 if kept else t
            for n in range(envs):
                total, weight, last = 0.0, 1.0, min(t + ahead, horizon) - 1
                for s in range(t, last + 1):
                    total += weight * reward[s, n]
                    weight *= gamma
                    if ends[s, n]:
                        total += weight * follows[s, n] * (ends[s, n] == 2)
                        break
                else:
                    cut = last == horizon - 1
                    total += weight * (follows[last, n] if cut else value[last + 1, n])
                assert b["rollout.returns"][row, n] == pytest.approx(total, abs=1e-5)
                away = total - value[t, n]
                assert b["rollout.advantage"][row, n] == pytest.approx(away, abs=1e-5)
        assert b["rollout.judged"].tolist() == [0, (begun + horizon) % held]


def test_many_environments_are_judged_as_few_are() -> None:
    """More rows than one pass takes."""
    k = judging({"envs": 300, "obs": 4, "act": 0})
    b, random = fill_arrays([k]), np.random.default_rng(0)
    for name in ("obs", "next_obs", "reward"):
        b[f"rollout.{name}"][:] = random.normal(size=b[f"rollout.{name}"].shape)
    b["rollout.truncated"][:] = random.random((HORIZON, 300)) < 0.1
    other = copied(b)
    cpu.bind(k, "native", b)()
    cpu.bind(k, "torch", other)()
    for name in ("value", "advantage", "returns"):
        np.testing.assert_allclose(b[f"rollout.{name}"], other[f"rollout.{name}"], atol=1e-5)


# Gradient steps


def _network(flat: Any, layers: Layers, x: Tensor, tanh: bool) -> Tensor:
    """In float64; flat may be numpy or a tensor with gradient, and longer than the network."""
    given = flat if isinstance(flat, Tensor) else torch.tensor(flat).double()
    offset = 0
    for layer, (i, o) in enumerate(pairwise(layers)):
        x = x @ given[offset : offset + i * o].reshape(i, o) + given[offset + i * o :][:o]
        offset += i * o + o
        if layer < len(layers) - 2:
            x = torch.tanh(x) if tanh else x.clamp(min=0)
    return x


def _rows(b: Buffers, chosen: Any) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, array in ppo.rows_of(b)._asdict().items():
        rows[name] = torch.tensor(array[chosen])
        if rows[name].dtype == torch.float32:
            rows[name] = rows[name].double()
    return rows


def _densities(k: Kernel, actor: Tensor, rows: dict[str, Any]) -> tuple[Any, Any]:
    """Log densities of the actions and entropies, from torch's own distributions."""
    act = k.dim("act")
    out = _network(actor, k.layers("actor"), rows["obs"], bool(k.dim("tanh")))
    if "choices" in k.dims:
        each: Any = [torch.distributions.Categorical(logits=z) for z in out.split(CHOICES, 1)]
        log_prob = sum(one.log_prob(rows["action"][:, c]) for c, one in enumerate(each))
        return log_prob, sum(one.entropy() for one in each)
    if act:
        normal: Any = torch.distributions.Normal(out, actor[-act:].exp())
        return normal.log_prob(rows["action"]).sum(1), normal.entropy().sum(1)
    categorical: Any = torch.distributions.Categorical(logits=out)
    return categorical.log_prob(rows["action"]), categorical.entropy()


def _too_far(k: Kernel, b: Buffers, actor: Tensor, chosen: Any) -> bool:
    if "hyper.target_kl" not in b:
        return False
    rows = _rows(b, chosen)
    moved = _densities(k, actor, rows)[0] - rows["log_prob"]
    return float((moved.exp() - 1 - moved).mean()) > 1.5 * float(b["hyper.target_kl"][0])


def _loss(k: Kernel, b: Buffers, actor: Tensor, critic: Tensor, chosen: Any) -> list[Tensor]:
    """The two losses of a minibatch."""
    rows, tanh = _rows(b, chosen), bool(k.dim("tanh"))
    log_prob, entropy = _densities(k, actor, rows)
    advantage = rows["advantage"]
    if b["hyper.normalise"][0]:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio, clip = (log_prob - rows["log_prob"]).exp(), float(b["hyper.clip"][0])
    policy = -ratio * advantage
    if clip:
        policy = torch.maximum(policy, -ratio.clamp(1 - clip, 1 + clip) * advantage)
    value = _network(critic, k.layers("critic"), rows["obs"], tanh).squeeze(1)
    error, limit = (value - rows["returns"]) ** 2, float(b["hyper.value_clip"][0])
    if limit:
        held = rows["value"] + torch.clamp(value - rows["value"], -limit, limit)
        error = torch.maximum(error, (held - rows["returns"]) ** 2)
    first = policy.mean() - b["hyper.entropy"][0] * entropy.mean()
    return [first, b["hyper.value_weight"][0] * error.mean()]


def _orders(k: Kernel, b: Buffers) -> Iterator[np.ndarray[Any, Any]]:
    """The minibatches of one firing."""
    base = np.uint64(rng.stream_base(b["rng.update"][0], b["rng.update"][1]))
    order = np.arange(k.dim("batch") * k.dim("steps") // k.dim("epochs"))
    for epoch in range(k.dim("epochs")):
        if k.dim("batch") < order.size:
            ppo.shuffle(base, epoch, order)
        yield from order.copy().reshape(-1, k.dim("batch"))


def reference(k: Kernel, b: Buffers) -> dict[str, Tensor]:
    """Parameters and moments after one firing, in float64, with torch's autograd."""
    names = ("actor", "critic")
    p = {n: torch.tensor(b[f"learner.{n}"]).double() for n in names}
    m = {n: torch.tensor(b[f"learner.{n}.m"]).double() for n in names}
    v = {n: torch.tensor(b[f"learner.{n}.v"]).double() for n in names}
    total, done = b["hyper.anneal"][0], int(b["learner.step"][0])
    share = max(1 - done / total, 0) if total else 1.0
    rates = {n: share * rate_after(b[f"hyper.lr.{n}"].tolist(), done) for n in names}
    beta1, beta2, eps = b["hyper.adam"]
    decay, inside = b["hyper.rmsprop"]
    taken = int(b["learner.actor.steps"][0])
    for step, chosen in enumerate(_orders(k, b), start=1 + taken):
        if _too_far(k, b, p["actor"], chosen):
            break
        taken = step
        for n in names:
            p[n].requires_grad_()
        losses = _loss(k, b, p["actor"], p["critic"], chosen)
        grads = torch.autograd.grad(losses[0] + losses[1], [p[n] for n in names])
        norm, most = torch.cat(grads).norm(), b["hyper.clip_norm"][0]
        for n, grad in zip(names, grads, strict=True):
            g = grad * min(1.0, most / (norm + 1e-6)) if most else grad
            p[n], rate = p[n].detach(), rates[n]
            if decay:
                v[n] = decay * v[n] + (1 - decay) * g**2
                p[n] = p[n] - rate * g / (v[n] + inside).sqrt()
            else:
                m[n] = beta1 * m[n] + (1 - beta1) * g
                v[n] = beta2 * v[n] + (1 - beta2) * g**2
                root = (v[n] / (1 - beta2**step)).sqrt() + eps
                p[n] = p[n] - rate * m[n] / (1 - beta1**step) / root
    found = {f"learner.{n}": p[n] for n in names} | {f"learner.{n}.v": v[n] for n in names}
    found["learner.actor.steps"] = torch.tensor([float(taken)])
    found |= {f"loss.{n}": loss.detach()[None] for n, loss in zip(names, losses, strict=True)}
    return found | ({} if decay else {f"learner.{n}.m": m[n] for n in names})


def learning(k: Kernel, seed: int = 4) -> Buffers:
    """Arrays of a rollout whose ratios and values lie on both sides of every clip."""
    b, random = fill_arrays([k], seed), np.random.default_rng(seed)
    for name in ("obs", "advantage", "returns"):
        b[f"rollout.{name}"][:] = random.normal(size=b[f"rollout.{name}"].shape)
    for name in ("actor", "critic"):
        widths = k.layers(name)
        b[f"learner.{name}"][: parameters(widths)] = policies.orthogonal_params(
            widths, seed, final_gain=0.5
        )
        b[f"learner.{name}.m"][:], b[f"learner.{name}.v"][:] = 0, 0
    shape = b["rollout.log_prob"].shape
    obs = torch.tensor(ppo.rows_of(b).obs).double()
    out = _network(b["learner.actor"], k.layers("actor"), obs, bool(k.dim("tanh")))
    if "choices" in k.dims:
        b["act.choices"][:] = CHOICES
        taken = random.integers(0, CHOICES, b["rollout.action"].shape)
        b["rollout.action"][:] = taken
        rows, logs = torch.tensor(ppo.rows_of(b).action), out.split(CHOICES, 1)
        exact = sum(
            torch.log_softmax(z, 1).gather(1, rows[:, c : c + 1]).squeeze(1)
            for c, z in enumerate(logs)
        )  # type: ignore[assignment]
    elif k.dim("act"):
        b["learner.actor"][-k.dim("act") :] = -0.5, 0.3
        b["rollout.action"][:] = random.normal(size=b["rollout.action"].shape)
        std = torch.tensor([-0.5, 0.3]).double().exp()
        normal: Any = torch.distributions.Normal(out, std)
        exact = normal.log_prob(torch.tensor(ppo.rows_of(b).action).double()).sum(1)
    else:
        b["rollout.action"][:] = random.integers(0, 3, shape)
        taken = torch.tensor(ppo.rows_of(b).action)[:, None]
        exact = torch.log_softmax(out, 1).gather(1, taken).squeeze(1)
    b["rollout.log_prob"][:] = exact.reshape(shape).numpy() + random.normal(0, 0.3, shape)
    value = _network(b["learner.critic"], k.layers("critic"), obs, bool(k.dim("tanh")))
    b["rollout.value"][:] = value.reshape(shape).numpy() + random.normal(0, 0.3, shape)
    b["hyper.clip"][:], b["hyper.entropy"][:], b["hyper.value_weight"][:] = 0.2, 0.02, 0.7
    b["hyper.normalise"][:], b["hyper.clip_norm"][:] = 1, 0.5
    return b


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as it is": ({}, {}), "relu": ({"tanh": 0}, {}), "one layer": ({"hidden": (20,)}, {}),
    "deep": ({"hidden": (16, 24, 8, 40)}, {}), "value clipping": ({}, {"value_clip": 0.2}),
    "no clipping": ({}, {"clip": 0.0, "clip_norm": 0.0}),
    "advantages as given": ({}, {"normalise": 0.0}), "annealed": ({}, {"anneal": 32.0}),
    "falling in a line": ({"extra": {"scheduled": 1}}, {"lr": (3e-3, 1e-3, 32.0, 0.0)}),
    "falling along a cosine": ({"extra": {"scheduled": 1}}, {"lr": (3e-3, 0.0, 20.0, 1.0)}),
    "rmsprop": ({}, {"rmsprop": (0.99, 1e-5)}),
    "one minibatch": ({"epochs": 1, "minibatches": 1}, {}),
}  # fmt: skip


@pytest.mark.sweep(5)
@pytest.mark.parametrize(
    ("case", "variant"),
    [*((case, "native") for case in CASES), ("value clipping", "torch"), ("rmsprop", "torch")],
)
@SPACES
def test_all_gradient_steps_of_a_rollout_are_those_of_the_reference(
    spaces: dict[str, Any], case: str, variant: str
) -> None:
    shape, constants = CASES[case]
    k = update(spaces, **shape)
    b = learning(k)
    for name, value in constants.items():
        for each in [f"lr.{n}" for n in ("actor", "critic")] if name == "lr" else [name]:
            b[f"hyper.{each}"][:] = value
    b["learner.step"][:] = 16
    before, exact = copied(b), reference(k, b)
    cpu.bind(k, variant, b)()
    for name, wanted in exact.items():
        moved = np.linalg.norm(wanted.numpy() - before[name])
        assert moved > 0, name
        assert np.linalg.norm(b[name] - wanted.numpy()) <= 2e-3 * moved, name
    assert b["learner.step"][0] == 16 + k.dim("steps")
    assert b["learner.actor.steps"][0] == k.dim("steps")
    assert b["rng.update"][1] == 1


@pytest.mark.parametrize("variant", ["native", "torch"])
@SPACES
def test_the_gradients_of_vector_steps_add_up_to_one_step_over_the_rollout(
    spaces: dict[str, Any], variant: str
) -> None:
    """Two rollouts, of which a ring of three vector steps is kept."""
    whole = update(spaces, "ppo", 1, 1)
    dims = {**whole.dims, "batch": spaces["envs"], "kept": 3}
    k = kernel("update.ppo", dims, program=whole.program)
    b = learning(whole)
    b["hyper.normalise"][:], b["hyper.anneal"][:], b["learner.step"][:] = 0.0, 32.0, 15
    rollout = {name: array for name, array in b.items() if name.startswith("rollout.")}
    ring = {**fill_arrays([k]), **{n: a for n, a in b.items() if n not in rollout}}
    for name in ("actor", "critic"):
        ring[f"learner.{name}.sum"][:] = 0.0
    ring["learner.at"][:] = 0
    call = cpu.bind(k, variant, ring)
    for firing in range(2 * HORIZON):
        t = firing % HORIZON
        if t == 0:
            before, exact = copied(b), reference(whole, b)
        for name, array in rollout.items():
            if name in ring:
                ring[name][firing % len(ring[name])] = array[t]
        call()
        if t < HORIZON - 1:
            assert np.array_equal(ring["learner.actor"], before["learner.actor"])
    assert ring["learner.at"].tolist() == [0, 2 * HORIZON % 3]
    for name, wanted in exact.items():
        moved = np.linalg.norm(wanted.numpy() - before[name])
        assert np.linalg.norm(ring[name] - wanted.numpy()) <= 2e-3 * moved, name
    assert ring["learner.step"][0] == 17
    assert not ring["learner.actor.sum"].any()
    assert not ring["learner.critic.sum"].any()


def _draw_again(k: Kernel, b: Buffers) -> None:
    """Fills the rollout with actions drawn by the native variant from learner.actor."""
    wanted = ("envs", "obs", "act", "choices", "tanh", "actor")
    act = kernel("inference.ppo", {n: k.dims[n] for n in wanted if n in k.dims})
    a = fill_arrays([act])
    if "choices" in k.dims:
        a["act.choices"][:] = CHOICES
    a["policy.actor"][:] = b["learner.actor"]
    call = cpu.bind(act, "native", a)
    for t in range(HORIZON):
        a["env.obs"][:] = b["rollout.obs"][t]
        call()
        b["rollout.action"][t] = a["act.sample" if "act.sample" in a else "act.action"]
        b["rollout.log_prob"][t] = a["act.log_prob"]


@pytest.mark.parametrize("variant", ["native", "torch"])
@SPACES
def test_gradient_steps_end_before_the_policy_is_too_far(
    spaces: dict[str, Any], variant: str
) -> None:
    """The same minibatch ends them in float64."""
    k = update(spaces, epochs=4, extra={"stops": 1})
    b = learning(k)
    _draw_again(k, b)
    for name in ("actor", "critic"):
        b[f"hyper.lr.{name}"][:] = 0.01
    b["hyper.target_kl"][:] = 0.01
    before, exact = copied(b), reference(k, b)
    cpu.bind(k, variant, b)()
    taken = int(b["learner.actor.steps"][0])
    assert 0 < taken < k.dim("steps")
    assert taken == int(exact["learner.actor.steps"])
    moved = np.linalg.norm(exact["learner.actor"].numpy() - before["learner.actor"])
    assert np.linalg.norm(b["learner.actor"] - exact["learner.actor"].numpy()) <= 2e-3 * moved
    assert b["learner.step"][0] == k.dim("steps")  # schedules go on


@SPACES
def test_the_first_ratio_is_exactly_1(spaces: dict[str, Any]) -> None:
    """Density and draw have the same bits, so that clipping at any width changes nothing yet."""
    k = update(spaces, "a2c", 1, 1)
    b = learning(k)
    _draw_again(k, b)
    results = []
    for clip in (0.0, 1e-7, 0.2):
        each = copied(b)
        each["hyper.clip"][:] = clip
        cpu.bind(k, "native", each)()
        results.append(each["learner.actor"])
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_the_advantage_of_one_row_stays_and_equal_ones_become_0() -> None:
    for given, wanted in (([7.0], [7.0]), ([2.5] * 5, [0.0] * 5)):
        x = np.array(given, np.float32)
        ppo.normalise(x)
        assert x.tolist() == wanted


def test_every_epoch_sees_every_row_once_in_another_order() -> None:
    order = np.arange(64)
    seen = []
    for epoch in range(3):
        ppo.shuffle(np.uint64(11), epoch, order)
        assert sorted(order.tolist()) == list(range(64))
        seen.append(order.tolist())
    assert seen[0] != seen[1] != seen[2]
