"""A topic in a bag, and the interface between recording and a file format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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

    def profiles_text(self, *, numbers: bool = False) -> str:
        """The same as YAML. numbers: rmw's numbers instead of words, as in metadata before version 9."""
        profiles = self.profiles()
        if numbers:
            profiles[0]["history"] = profiles[0]["liveliness"] = 1
            profiles[0]["reliability"] = 1 if self.reliable else 2
            profiles[0]["durability"] = 1 if self.latched else 2
        return yaml.safe_dump(profiles, sort_keys=False).strip()


class BagWriter(Protocol):
    """Writes a bag; one thread calls all of it.

    path: the folder. Call `add` before the first message of a topic. `flush` makes everything written so far
    survive the process. `close` ends the bag properly; `abandon` saves what it can after an error, and raises
    nothing. All other methods may raise OSError or RuntimeError.
    """

    @property
    def path(self) -> Path: ...

    def add(self, topic: Topic) -> None: ...

    def write(self, topic: str, log_ns: int, data: bytes | bytearray) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...
