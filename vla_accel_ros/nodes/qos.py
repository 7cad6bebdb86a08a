"""The QoS profile of every topic, in one place.

Sensor streams are best effort and keep one message: a late image is worth less than the next one. Commands,
chunks and answers are reliable. The instruction is transient local, so that a node that (re)starts later
still gets it. Parameters can override sensor subscriptions (`qos_overrides./topic.subscription.reliability`).
rclpy logs a warning for every publisher with incompatible QoS; nothing here switches that off.
"""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions


def _profile(depth: int, reliability: ReliabilityPolicy, durability: DurabilityPolicy) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=depth, reliability=reliability, durability=durability
    )


SENSOR = _profile(1, ReliabilityPolicy.BEST_EFFORT, DurabilityPolicy.VOLATILE)
TRANSFORMS = _profile(100, ReliabilityPolicy.BEST_EFFORT, DurabilityPolicy.VOLATILE)
"""Of many publishers, each of which sends other frames."""
COMMAND = _profile(1, ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE)
REPORT = _profile(10, ReliabilityPolicy.RELIABLE, DurabilityPolicy.VOLATILE)
LATCHED = _profile(1, ReliabilityPolicy.RELIABLE, DurabilityPolicy.TRANSIENT_LOCAL)
ALL_LATCHED = _profile(32, ReliabilityPolicy.RELIABLE, DurabilityPolicy.TRANSIENT_LOCAL)
"""For recorders of every change of a latched topic, including changes in quick succession, and for topics of
which more than the last message counts."""


def overridable() -> QoSOverridingOptions:
    """Lets parameters override history, depth and reliability of a subscription."""
    return QoSOverridingOptions.with_default_policies()
