"""A logger of one's own: the returns of a run as JSON lines. Run it:
`python examples/log_returns.py`.
"""

import json
from pathlib import Path

import pearl


class JsonLines(pearl.Callback):
    """Writes a line at each evaluation."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_evaluation(self, event: pearl.Progress) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps({"step": event.env_steps, "mean": event.eval_mean}), file=file)


if __name__ == "__main__":
    pearl.compile("dqn_cartpole").train(callbacks=[JsonLines("returns.jsonl")])
