"""A note on plans in which weights move to another device at no cost."""

from __future__ import annotations

from pearl.planning.timing import Assignment


def free_weights_note(a: Assignment) -> str:
    """Return a warning if a plan moves weights to another device at no cost, else an empty text.

    The cost is missing if the weights' bytes are on the edge from a sender to a reader on the same
    device, and the edge into the sender comes from another device and has no bytes.
    """
    edges = a.expansion.graph.edges
    for out in edges:
        here = a.device_of(out.src)
        if out.limit != "policy_lag" or not out.bytes or a.device_of(out.dst) != here:
            continue
        for into in (e for e in edges if e.dst == out.src and e.src != out.src):
            if not into.bytes and a.device_of(into.src) != here:
                return (
                    f"weights move at no cost: {out.src} and {out.dst} run on {here}, and the edge "
                    f"{into.src} → {out.src} from {a.device_of(into.src)} has no bytes; give that "
                    f"edge the {out.bytes:.3g} bytes, or keep {out.src} with {into.src} "
                    "(Task.group, limits.together)"
                )
    return ""
