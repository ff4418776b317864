"""The Ray cluster that a user has started: its nodes, where on it to run something, and the
platform that it is."""

__all__ = [
    "CARRIERS",
    "Node",
    "answer_s",
    "carrier",
    "connected",
    "discovery",
    "door",
    "links",
    "nodes",
    "on_node",
    "pieces",
    "wire",
]

from pearl.cluster.connection import Node, answer_s, connected, nodes, on_node
from pearl.cluster.wire import CARRIERS, carrier
