"""The topic `instruction`, from publishers that keep their last message for later subscribers and others.

A node that starts later must get the last instruction, so its subscription is transient local. That receives
nothing from volatile publishers: rosbridge, Foxglove, `ros2 topic pub`. A second subscription receives from
both, so a message of the first kind comes twice; its second copy is dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.qos import QoSProfile

from vla_accel_ros.nodes import qos

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

__all__ = ["TOPIC", "SubscriptionEventCallbacks", "subscriptions"]

TOPIC = "instruction"
# A copy that comes later, on a host that is that busy, is taken for a new instruction.
_COPY_S = 10.0


def subscriptions(
    take: Callable[[Any], object], clock: Callable[[], float] = time.monotonic
) -> list[tuple[Callable[[Any], None], QoSProfile, SubscriptionEventCallbacks]]:
    """Callback, QoS and event callbacks of both subscriptions.

    take: called with each message once, a std_msgs/String or its bytes. The first subscription does not warn
    of volatile publishers, which the second hears. clock: monotonic seconds.
    """
    recent: dict[bool, deque[tuple[object, float]]] = {True: deque(maxlen=16), False: deque(maxlen=16)}

    def hear(latched: bool, message: Any) -> None:
        now_s, words = clock(), getattr(message, "data", message)
        copies = recent[not latched]
        for copy in copies:
            if copy[0] == words and now_s <= copy[1] + _COPY_S:
                copies.remove(copy)
                return
        recent[latched].append((words, now_s))
        take(message)

    return [
        (partial(hear, True), qos.LATCHED, SubscriptionEventCallbacks(incompatible_qos=_ignore)),
        (partial(hear, False), qos.REPORT, SubscriptionEventCallbacks()),
    ]


def _ignore(_: object) -> None:
    pass
