"""Who is measured: row → the run that gives env steps per CPU-second, and what it needs.

Runs import their library on use, each in the interpreter of that library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks import peers_ours, peers_torch, peers_xla
from benchmarks import peers_trainers as trainers
from benchmarks.peers_ours import BFLOAT16, GYMNASIUM, OWN_ENV, SMALLEST, TORCH
from benchmarks.peers_workloads import Workload

RUNS: Mapping[str, Callable[[Workload, int], Any]] = {
    "ours": lambda w, s: peers_ours.ours(w, s, {}),
    "ours, gymnasium": lambda w, s: peers_ours.ours(w, s, GYMNASIUM),
    "ours, own env": lambda w, s: peers_ours.ours(w, s, OWN_ENV),
    "ours, torch": lambda w, s: peers_ours.ours(w, s, TORCH),
    "ours, bfloat16": lambda w, s: peers_ours.ours(w, s, BFLOAT16),
    "ours, smallest": lambda w, s: peers_ours.ours(w, s, SMALLEST),
    "sb3": lambda w, s: trainers.stable("sb3", w, s),
    "sbx": lambda w, s: trainers.stable("sbx", w, s),
    "tianshou": trainers.tianshou,
    "torchrl": trainers.torchrl,
    "rllib": trainers.rllib,
    "eager": lambda w, s: peers_torch.run("eager", w, s),
    "lean": lambda w, s: peers_torch.run("lean", w, s),
    "xla": peers_xla.run,
    "products": lambda w, s: peers_ours.products(w, own=False),
    "products, ours": lambda w, s: peers_ours.products(w, own=True),
    "traffic": lambda w, s: peers_ours.traffic(w),
    "env": lambda w, s: peers_ours.env_only(w),
}
PEERS = {
    "sb3": "stable-baselines3",
    "sbx": "sbx-rl",
    "tianshou": "tianshou",
    "torchrl": "torchrl with an extension that loads beside its torch",
    "rllib": "ray[rllib]",
    "xla": "jax and optax",
    "eager": "torch and gymnasium",
    "lean": "torch, gymnasium and a C++ compiler",
}
"""Row that runs in an interpreter of its own (else in this one) → what that must have."""
FOLDERS = {"xla": "jax", "eager": "torch", "lean": "torch"}
"""Row → the name of its environment's folder, where that is not the row's."""
