"""A DQN of one file whose gradient step is a CUDA graph, in the manner of LeanRL: what a careful
person writes by hand today. It knows nothing of PEARL.

Environments are gymnasium's vector CartPole on the CPU; replay, networks and optimiser live on the
device; one gradient step is captured once and replayed. On a device without graphs it runs eager.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gymnasium
import torch
from torch import Tensor, nn


def network(hidden: int, device: torch.device) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
    ).to(device)


def captured(step: Callable[[], None], device: torch.device) -> Callable[[], object]:
    """The step as a CUDA graph, after three warm-up steps on a stream of its own."""
    if device.type != "cuda":
        return step
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


ENVS, HIDDEN, BATCH, CAPACITY = 8, 64, 64, 50_000


def train(device: torch.device, steps: int, learning_starts: int) -> tuple[int, int, float]:
    """Env steps, gradient steps, and seconds of both after learning has started."""
    torch.manual_seed(0)
    how = "vector_entry_point"
    envs = gymnasium.make_vec("CartPole-v1", num_envs=ENVS, vectorization_mode=how)
    q, target = network(HIDDEN, device), network(HIDDEN, device)
    target.load_state_dict(q.state_dict())
    graphs = device.type == "cuda"
    optimiser = torch.optim.Adam(q.parameters(), lr=2.5e-4, capturable=graphs)
    rows = {
        "obs": torch.zeros(CAPACITY, 4, device=device),
        "next_obs": torch.zeros(CAPACITY, 4, device=device),
        "action": torch.zeros(CAPACITY, dtype=torch.int64, device=device),
        "reward": torch.zeros(CAPACITY, device=device),
        "done": torch.zeros(CAPACITY, device=device),
    }
    drawn = torch.zeros(BATCH, dtype=torch.int64, device=device)
    count = updates = 0

    def step() -> None:
        taken = {name: column[drawn] for name, column in rows.items()}
        with torch.no_grad():
            ahead = target(taken["next_obs"]).max(1).values
            wanted = taken["reward"] + 0.99 * (1 - taken["done"]) * ahead
        held = q(taken["obs"]).gather(1, taken["action"][:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(held, wanted)
        optimiser.zero_grad(set_to_none=False)
        loss.backward()
        optimiser.step()

    def put(name: str, value: object, at: Tensor) -> None:
        column = rows[name]
        column[at] = torch.as_tensor(value).to(device=device, dtype=column.dtype)

    learn: Callable[[], object] | None = None
    obs, _ = envs.reset(seed=0)
    begin, begun = time.perf_counter(), 0
    while count < steps:
        with torch.no_grad():
            greedy = q(torch.as_tensor(obs).to(device)).argmax(1).cpu()
        explore = torch.rand(ENVS) < 0.1
        action = torch.where(explore, torch.randint(2, (ENVS,)), greedy).numpy()
        next_obs, reward, over, *_ = envs.step(action)
        at = (torch.arange(count, count + ENVS) % CAPACITY).to(device)
        for name, value in (
            ("obs", obs), ("next_obs", next_obs), ("action", action), ("reward", reward),
            ("done", over),
        ):  # fmt: skip
            put(name, value, at)
        obs, count = next_obs, count + ENVS
        if count < learning_starts:
            continue
        if learn is None:
            learn = captured(step, device)
            begin, begun = time.perf_counter(), count
        for _ in range(ENVS):
            drawn.copy_(torch.randint(min(count, CAPACITY), (BATCH,)))
            learn()
            updates += 1
        if count // 2000 != (count - ENVS) // 2000:
            target.load_state_dict(q.state_dict())
    if graphs:
        torch.cuda.synchronize(device)
    envs.close()
    return count - begun, updates, time.perf_counter() - begin
