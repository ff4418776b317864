"""Program of the process that plays evaluations.

The process maps the parameters and plays an evaluation for each request. Replies go to a pipe.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from pearl.algorithms.evaluation import acting_of
from pearl.algorithms.interface import label, policy_states
from pearl.runtime.child_process import Answer, ParentConnection, serve
from pearl.runtime.lanes.workers import error_text
from pearl.runtime.protocol.channels import SharedArrays
from pearl.spec.reading import load_on
from pearl.spec.user_code import UserCodeError, build_graph
from pearl.training.evaluations.evaluation import EpisodePlayer
from pearl.training.policy import Policy
from pearl_devices import platform_json, torch_threads
from pearl_devices.base import EnvironmentFailed

ALIVE_S = 5.0
"""Seconds between two signs of life."""


def main() -> int:
    """Play evaluations until the parent sends no more requests. Return the exit status."""
    return serve(_play, error_text)


def _play(parent: ParentConnection, about: Answer) -> None:
    threading.Thread(target=_send_heartbeats, args=(parent,), daemon=True).start()
    layout = [(name, tuple(shape), dtype) for name, shape, dtype in about["layout"]]
    arrays = SharedArrays(layout, parent.handle(about["memory"])).arrays
    system = load_on(platform_json.from_json(about["platform"]), about["spec"])
    acting = acting_of(build_graph(system))
    states = {name: arrays[f"judged.{label(name)}"] for name in policy_states(system, acting)}
    policy = Policy(system, acting, arrays["judged.policy"], states)
    player = EpisodePlayer(system, acting)
    with torch_threads.restoring_threads():
        while (orders := parent.next_request()) is not None:
            begin_cpu_s = time.process_time()
            try:
                found = player.evaluate(policy, orders["episodes"], orders["seed"])
            except EnvironmentFailed as error:
                parent.reply(failure=str(error))
                continue
            except UserCodeError as error:
                parent.reply(error=str(error))
                continue
            parent.reply(
                returns=found.returns,
                cut=found.cut,
                max_steps=found.max_steps,
                cpu_s=time.process_time() - begin_cpu_s,
            )
    player.close()


def _send_heartbeats(parent: ParentConnection) -> None:
    with suppress(OSError):  # the parent has ended
        while True:
            parent.reply(alive=True)
            time.sleep(ALIVE_S)
