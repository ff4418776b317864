"""The Ray cluster that a user has started: its nodes, its links, and its platform."""

__all__ = [
    "CARRIERS",
    "Node",
    "answer_s",
    "carrier",
    "chunks",
    "connect",
    "discovery",
    "door",
    "links",
    "nodes",
    "on_node",
    "transport",
]

from pearl.cluster.connection import Node, answer_s, connect, nodes, on_node
from pearl.cluster.transport import CARRIERS, carrier
