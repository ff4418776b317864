"""Learning, checked by return: `python -m benchmarks.returns [--cases …] [--seeds N] [--peer …]`.

Prints, for every case, the interquartile mean of the last policy's greedy return over seeds with
its 95 % interval (Agarwal et al. 2021), beside libraries with the same settings and published
figures. A peer runs in the interpreter that `--peer sb3=…/bin/python` names. Runs are kept
(`benchmarks.kept_runs`).
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

from benchmarks import returns_peers
from benchmarks.kept_runs import OURS, Kept
from benchmarks.returns_cases import BY_NAME, Case, Shipped


def settings_of(case: Case | Shipped, who: str = OURS) -> str:
    """Digest of what decides a run, the same for all; of a shipped configuration its bytes."""
    if isinstance(case, Case):
        return case.fingerprint()
    from importlib.resources import files

    data = files("pearl_configs").joinpath(f"{case.config}.yaml").read_bytes()
    return hashlib.sha256(data).hexdigest()[:12]


def one(case: Case | Shipped, who: str, seed: int) -> dict[str, Any]:
    """One run, in the process it is alone in."""
    if who != OURS:
        assert isinstance(case, Case)
        return returns_peers.train(who, case, seed)
    from importlib.metadata import version

    import pearl

    spec = case.spec() if isinstance(case, Case) else case.config
    found = pearl.compile(spec, seed=seed).train().returns
    last = {"final": found["eval_mean"], "last_20": found["mean_last_20"]}
    return last | {"version": version("pearl-toolkit")}


PEERS = returns_peers.PEERS
RETURNS = Kept("returns", BY_NAME, settings_of, one, PEERS, ("shipped dqn_cartpole", 3))

if __name__ == "__main__":
    sys.exit(RETURNS.main(__doc__))
