"""Finds other fleet schedulers in the graph.

A scheduler serves every robot of its ROS domain, so two of them would both compute for all, and each would
promise what both need. It is said and not refused: a scheduler that was killed stays in the graph for some
20 s, and the one that takes its place must start meanwhile.
"""

from __future__ import annotations

from rclpy.node import Node

NAME = "fleet_scheduler"


class OtherSchedulers:
    """sentence: about the others that are in the graph, of the last look; empty if there are none."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.sentence = ""

    def look(self) -> None:
        """Look at the graph, and log what is new."""
        names = {NAME, self._node.get_name()}
        schedulers = [node for node in self._node.get_node_names_and_namespaces() if node[0] in names]
        name = self._node.get_name(), self._node.get_namespace()
        if name in schedulers:
            schedulers.remove(name)
        previous, self.sentence = self.sentence, _sentence(schedulers)
        if self.sentence and self.sentence != previous:
            self._node.get_logger().error(self.sentence)


def _sentence(there: list[tuple[str, str]]) -> str:
    if not there:
        return ""
    named = ", ".join(sorted(f"{namespace.rstrip('/')}/{name}" for name, namespace in there))
    return (
        f"another fleet scheduler is in this ROS domain and serves the same robots: {named}; end all but "
        "one, or give each fleet its own ROS_DOMAIN_ID (one that was killed is listed for some 20 s)"
    )
