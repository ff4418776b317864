"""Several hosts: the Ray cluster that a user has started as a platform, and lanes on its nodes.

Lanes of other hosts are the same lanes over arrays of their own, with messages between the hosts.
"""

__all__ = ["Node", "answer_s", "connect", "discovery", "links", "nodes", "on_node"]

from pearl.cluster.connection import Node, answer_s, connect, nodes, on_node
