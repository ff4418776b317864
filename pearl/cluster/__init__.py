"""The Ray cluster that a user has started: its nodes, where on it to run something, and the
platform that it is."""

__all__ = ["Node", "connected", "discovery", "links", "nodes", "on_node", "pieces"]

from pearl.cluster.connection import Node, connected, nodes, on_node
