"""The episodes of an evaluation, for every way to play them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pearl_devices.base import Buffers
from pearl_devices.kernel import Kernel
from pearl_devices.kernels.evaluation import PLAYED, policy_of, vector_steps
from pearl_devices.kernels.interface import states
from pearl_devices.primitives.math.rng import key


def episode_seeds(seed: int, episodes: int) -> list[int]:
    """Return the seeds of the environments' resets; that of episode i depends on (seed, i)
    alone."""
    return [key(seed, f"evaluation {i}") % 2**31 for i in range(episodes)]


class Evaluations(ABC):
    """A bound evaluation."""

    def __init__(self, kernel: Kernel, buffers: Buffers) -> None:
        self.kernel, self.buffers = kernel, buffers
        self._at = buffers["evaluation.at"]

    @abstractmethod
    def reset(self, seeds: Sequence[int]) -> None:
        """Begin an episode in each row; rows take these seeds in turn."""

    @abstractmethod
    def play(self, steps: int) -> None:
        """Play `steps` vector steps, or fewer if all episodes end."""

    def close(self) -> None:
        """Release resources outside the arrays, if there are any."""
        self._at[0] = 0

    @property
    def playing(self) -> bool:
        """Whether an episode is running."""
        return bool(self._at[0])

    def begin(self, seed: int) -> None:
        """Begin an evaluation of the current policy. seed: of its episodes."""
        b, (name, _) = self.buffers, policy_of(self.kernel)
        b["evaluation.policy"][...] = b[name]
        if "evaluation.statistics" in b:
            b["evaluation.statistics"][...] = b["normalise.obs"]
        for state in states(self.kernel):
            b[PLAYED + state][...] = b[state]
        self.reset(episode_seeds(seed, self.kernel.dim("episodes")))

    def __call__(self) -> None:
        """Do one firing: play all episodes of the seed in evaluation.seed."""
        self.begin(int(self.buffers["evaluation.seed"][0]))
        self.play(vector_steps(self.kernel))
