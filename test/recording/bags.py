"""Small bags of text messages, and what can be read of them."""

from __future__ import annotations

from pathlib import Path

from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.recording.topic import Topic

TEXT = Topic("/words", "std_msgs/msg/String", "string data\n", reliable=True, latched=True, depth=3)


def text(words: str) -> bytes:
    """A serialized std_msgs/String."""
    raw = words.encode() + b"\0"
    return b"\x00\x01\x00\x00" + len(raw).to_bytes(4, "little") + raw


def numbered(number: int, size: int = 0) -> bytes:
    """A text that begins with a number and is padded to a size."""
    return text(f"{number} ".ljust(size, "."))


def words(path: Path) -> list[str]:
    """All texts of a bag."""
    bag = Bag(path)
    return [bag.decode(entry).data for entry in bag.entries()]


def numbers(path: Path) -> list[int]:
    """The numbers that its texts begin with."""
    return [int(word.split()[0]) for word in words(path)]
