"""LeRobot's policy type `vla_accel`: actions of a policy server, by openpi's wire.

LeRobot imports this package and its modules by their names. configuration_vla_accel: the options.
modeling_vla_accel: the policy. processor_vla_accel: LeRobot's own steps around it.
"""

from lerobot_policy_vla_accel.configuration_vla_accel import VlaAccelConfig

__all__ = ["VlaAccelConfig"]
