"""Videos of episodes of the policy (extra `video`), by gymnasium's `RecordVideo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pearl.callbacks.extras import import_extra
from pearl.errors import SpecError
from pearl.training.policy import Policy
from pearl.training.steering import Answer, Callback, Progress


class Video(Callback):
    """Records an episode of the last policy after every `every`-th evaluation.

    folder: of the files, `env-step-N-episode-0.mp4`.
    seed: of the episode, so that videos can be compared.

    Raises:
        SpecError: moviepy is not installed.
    """

    def __init__(self, folder: str | Path, *, every: int = 1, seed: int = 0) -> None:
        import_extra("moviepy", "video", "Video")
        self._folder, self._every, self._seed, self._seen = Path(folder), every, seed, 0

    def on_evaluation(self, event: Progress) -> Answer:
        self._seen += 1
        if self._seen % self._every == 0:
            record(event.policy_last, self._folder, f"env-step-{event.env_steps}", self._seed)
        return None


def record(policy: Policy, folder: Path, name: str, seed: int) -> None:
    """Record one episode of a policy.

    Raises:
        SpecError: the environment renders no images, or its observations are stacked frames.
    """
    from gymnasium.error import Error
    from gymnasium.wrappers import RecordVideo

    from pearl_devices.primitives.envs.border import read_step, reset
    from pearl_devices.user_imports import make_environment

    asked = policy.system.env
    if asked.stack or asked.pixels:
        raise SpecError(f"Video: {asked.id} observes images; such environments are not supported")
    try:
        inner: Any = make_environment(asked.id, {**asked.args, "render_mode": "rgb_array"})
        env: Any = RecordVideo(inner, str(folder), name_prefix=name, disable_logger=True)
    except (Error, TypeError, ValueError, ImportError) as error:
        raise SpecError(f"Video: {asked.id} cannot be recorded: {error}") from None
    try:
        obs, _ = reset(env, seed=seed)
        over = False
        while not over:
            obs, _, terminated, truncated = read_step(env.step(policy(obs)))
            over = terminated or truncated
    except Error as error:
        raise SpecError(f"Video: {asked.id} cannot be recorded: {error}") from None
    finally:
        env.close()
