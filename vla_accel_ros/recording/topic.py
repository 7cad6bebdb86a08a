"""A topic in a bag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

_FOREVER = {"sec": 9223372036, "nsec": 854775807}


@dataclass(frozen=True)
class Topic:
    """name: with its namespace. type: such as "std_msgs/msg/String". definition: its ros2msg text, including
    nested messages. reliable, latched, depth: the QoS for playback. digest: RIHS01 of the type, empty if
    unknown."""

    name: str
    type: str
    definition: str
    reliable: bool
    latched: bool = False
    depth: int = 10
    digest: str = ""

    def profiles(self) -> list[dict[str, Any]]:
        """The offered QoS profiles in words, as in metadata of version 9."""
        return [
            {
                "history": "keep_last",
                "depth": self.depth,
                "reliability": "reliable" if self.reliable else "best_effort",
                "durability": "transient_local" if self.latched else "volatile",
                "deadline": dict(_FOREVER),
                "lifespan": dict(_FOREVER),
                "liveliness": "automatic",
                "liveliness_lease_duration": dict(_FOREVER),
                "avoid_ros_namespace_conventions": False,
            }
        ]

    def profiles_text(self) -> str:
        """The same as YAML."""
        return yaml.safe_dump(self.profiles(), sort_keys=False).strip()
