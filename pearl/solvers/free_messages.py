"""A note where a plan moves weights that no message carries."""

from __future__ import annotations

from pearl.planning.timing import Assignment


def free_weights_note(a: Assignment) -> str:
    """A sentence where a task that hands out weights runs beside their reader, and the message into
    that task comes from another device without bytes; empty elsewhere.

    Then the weights cross for nothing: their bytes stand on the edge that crosses no link.
    """
    edges = a.expansion.graph.edges
    for out in edges:
        here = a.device_of(out.src)
        if out.limit != "policy_lag" or not out.bytes or a.device_of(out.dst) != here:
            continue
        for into in (e for e in edges if e.dst == out.src and e.src != out.src):
            if not into.bytes and a.device_of(into.src) != here:
                return (
                    f"weights cross for nothing: {out.src} runs on {here} beside {out.dst}, and "
                    f"the edge {into.src} → {out.src} from {a.device_of(into.src)} carries no "
                    f"bytes; give that edge the {out.bytes:.3g} bytes, or hold {out.src} to "
                    f"{into.src} (Task.group, limits.together)"
                )
    return ""
