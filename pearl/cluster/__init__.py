"""The Ray cluster that a user has started: its nodes, where on it to run something, and the
platform that it is."""

__all__ = [
    "CARRIERS",
    "Node",
    "carrier",
    "connected",
    "discovery",
    "links",
    "nodes",
    "on_node",
    "pieces",
    "wire",
]

from pearl.cluster.connection import Node, connected, nodes, on_node
from pearl.cluster.wire import CARRIERS, carrier
