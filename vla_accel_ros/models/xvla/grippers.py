"""The action modes of an X-VLA: which channels are grippers.

Their numbers are probabilities of being closed: the network gets zeros for them, in the actions and the
state, and answers a logit.
"""

from __future__ import annotations

from collections.abc import Mapping

GRIPPERS: Mapping[str, tuple[int, ...]] = {
    "ee6d": (9, 19),
    "joint": (6, 13),
    "agibot_ee6d": (),
    "franka_joint7": (),
    "so101_bimanual": (5, 11),
    "auto": (),
}
"""By lerobot's name of the mode. Those of agibot_ee6d are trained as any other channel."""

REAL: Mapping[str, int] = {"franka_joint7": 7, "so101_bimanual": 12}
"""Channels of a mode's actions that a robot has, where they are fewer than the network's."""
