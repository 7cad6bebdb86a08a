"""The name of the topic of chunks, and of the shared memory beside it.

The slot is named after the remapped topic, so two robots, two domains, and two pairs of nodes in one
namespace have different slots. The name contains a character that no ROS name has, so it is never a camera's
ring.
"""

from __future__ import annotations

from rclpy.node import Node

from vla_accel_ros.sensing.cameras.ring import ring_name

TOPIC = "action_chunk"


def slot_name(node: Node) -> str:
    """The name of the slot beside the topic of chunks."""
    namespace, _, topic = node.resolve_topic_name(TOPIC).rpartition("/")
    return ring_name(node.context.get_domain_id(), namespace, topic) + "-slot"
