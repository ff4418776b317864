"""Which episodes an evaluation has, however they are played."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pearl_devices.base import Buffers
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.evaluation import PLAYED, policy_of, vector_steps
from pearl_devices.kernels.interface import states
from pearl_devices.primitives.math.rng import key


def seeds(seed: int, episodes: int) -> list[int]:
    """The seeds of the environments' resets: episode i has that of (seed, i)."""
    return [key(seed, f"evaluation {i}") % 2**31 for i in range(episodes)]


class Evaluations(ABC):
    """A bound evaluation."""

    def __init__(self, kernel: Kernel, buffers: Buffers) -> None:
        self.kernel, self.buffers = kernel, buffers
        self._at = buffers["evaluation.at"]

    @abstractmethod
    def reset(self, seeds: Sequence[int]) -> None:
        """All rows begin an episode, of these seeds in turn."""

    @abstractmethod
    def play(self, steps: int) -> None:
        """Play so many vector steps, or as many as there are."""

    def close(self) -> None:
        """End what is not in the arrays, where there is any."""
        self._at[0] = 0

    @property
    def playing(self) -> bool:
        """Whether an episode is under way."""
        return bool(self._at[0])

    def begin(self, seed: int) -> None:
        """Begin an evaluation of the policy as it is now. seed: of its episodes."""
        b, (name, _) = self.buffers, policy_of(self.kernel)
        b["evaluation.policy"][...] = b[name]
        if "evaluation.statistics" in b:
            b["evaluation.statistics"][...] = b["normalise.obs"]
        for state in states(self.kernel):
            b[PLAYED + state][...] = b[state]
        self.reset(seeds(seed, self.kernel.dim("episodes")))

    def __call__(self) -> None:
        """A firing: all episodes of the seed in evaluation.seed."""
        self.begin(int(self.buffers["evaluation.seed"][0]))
        self.play(vector_steps(self.kernel))
