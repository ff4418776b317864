"""What parts of reading a spec answer: values by hand, and every sentence of a refusal, whole."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace as Given
from typing import Any

import gymnasium
import pytest

from pearl.errors import SpecError
from pearl.graph.limits import Limits
from pearl.spec.distribution import DISTRIBUTIONS, _copies
from pearl.spec.platform_template import platform_text
from pearl.spec.reading import load
from tests.answers import check, titles
from tests.spec.test_distribution import CPU, DQN, LEARNERS, PPO, system
from tests.spec.test_platforms import CABLE, DEVICE, OWN_FPGA, two_hosts
from tests.spec.test_spec import BASE, DDPG

__all__ = ["BASE", "CABLE", "CPU", "DDPG", "DQN", "LEARNERS", "OWN_FPGA", "PPO", "system",
           "two_hosts"]  # fmt: skip
SMALL = {"name": "dqn", "env": "Nowhere-v0", "spaces": {"obs": 4, "actions": 2}, "num_envs": 8,
         "batch_size": 32, "learning_starts": 32, "replay": {"capacity": 64}}  # fmt: skip
ROLLOUT = {"name": "ppo", "env": "E-v0", "spaces": {"obs": 4, "actions": 2}, "num_envs": 3}
BOX = {"obs": 4, "act": 2, "low": -1.0}


def spec(text: str | bytes, **overlay: Any) -> str:
    """Read a file s.yaml; gymnasium knows {ids} ids."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        try:
            load(path, **overlay)
        except SpecError as error:
            known = f"knows {len(gymnasium.registry)} ids"
            lines = (line.replace(f"{folder}/", "") for line in error.problems)
            raise SpecError(*(line.replace(known, "knows {ids} ids") for line in lines)) from None
    return "read"


def options(base: dict[str, Any] = SMALL, limits: Any = None, **changes: Any) -> str:
    """Read an algorithm with these options changed."""
    load({"algorithm": {**base, **changes}, "limits": limits or {}})
    return "read"


def device(changed: dict[str, Any], **rest: Any) -> str:
    """Read a platform whose CPU has these entries changed."""
    load({"algorithm": SMALL, "platform": {"devices": {"cpu": {**DEVICE, **changed}}, **rest}})
    return "read"


def template(devices: str) -> str:
    """Write a platform of devices out; a refusal does not list the catalogue."""
    try:
        return platform_text(devices)
    except SpecError as error:
        (line,) = error.problems
        raise SpecError(line.partition("; allowed are")[0]) from None


def copies(environments: int, lanes: int, limit: int | None) -> list[int]:
    """Copies of a task by a policy in order, and by one in any order."""
    task: Any = Given(name="a", environments=environments)
    given = Limits(replicas={"a": limit} if limit else {"b": 1})
    names = ("synchronous_actors", "asynchronous_actors")
    return [_copies(task, lanes, DISTRIBUTIONS[name], given) for name in names]


FILE = Path(__file__).parent / "answers.txt"


@pytest.mark.parametrize("title", titles(FILE))
def test_readers_answer_what_is_kept(title: str, request: pytest.FixtureRequest) -> None:
    check(FILE, title, globals(), write=request.config.getoption("--write"))
