"""What the topic of chunks is called, and the shared memory beside it.

The slot's name is that of the topic as it is after remapping, so two robots, two domains, and two pairs of
nodes in one namespace have one each. It ends with a character that no ROS name has: no camera's ring has it.
"""

from __future__ import annotations

from rclpy.node import Node

from vla_accel_ros.sensing.cameras.ring import ring_name

TOPIC = "action_chunk"


def slot_name(node: Node) -> str:
    """The name of the slot beside the topic of chunks."""
    namespace, _, topic = node.resolve_topic_name(TOPIC).rpartition("/")
    return ring_name(node.context.get_domain_id(), namespace, topic) + "-slot"
