"""Former names of `engine.rules.rule`, for rules of other packages."""

from vla_accel_ros.engine.rules.rule import Rule as Policy
from vla_accel_ros.engine.rules.rule import Setup

__all__ = ("Policy", "Setup")
