"""A callback of one's own: end a run once its loss no longer falls. Run it:
`python examples/stop_early.py`.
"""

import pearl


class Settled(pearl.Callback):
    """Stops once the loss has come near to a tenth of the largest that was seen."""

    largest = 0.0

    def on_progress(self, event: pearl.Progress):
        loss = event.losses["q"]
        self.largest = max(self.largest, loss)
        return pearl.STOP if event.updates > 500 and loss < 0.1 * self.largest else None


if __name__ == "__main__":
    trainer = pearl.compile("dqn_cartpole")
    run = trainer.train(callbacks=[Settled()])
    print(run.status, run.stopped, trainer.policy_last([[0.0, 0.0, 0.1, 0.0]]))
