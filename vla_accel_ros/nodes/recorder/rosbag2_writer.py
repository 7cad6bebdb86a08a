"""Writes a bag through rosbag2, if ROS has it: its storage plugin, its metadata, its version.

rosbag2_py differs between distributions: Humble has no number for a topic and takes the QoS as text, later
ones take the result of `to_rclcpp_qos_vector`, and only the latest can be closed. This uses what there is.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.topic import BagWriter, Topic

WRITERS = ("auto", "rosbag2", "mcap")
_PRESETS = {"none": "", "zstd": "zstd_fast"}
_QOS_VERSION = 9


def open_bag(path: Path, writer: str, compression: str) -> BagWriter:
    """A new bag. writer: one of WRITERS; auto is rosbag2 if it is installed and can write MCAP, else mcap.

    Raises ValueError, in one sentence, for rosbag2 if it is missing, OSError if the folder cannot be written.
    """
    if writer != "mcap":
        try:
            return Rosbag2Bag(path, compression)
        except (ImportError, RuntimeError) as error:
            if writer == "rosbag2":
                raise ValueError(
                    f"writer is 'rosbag2', which cannot write MCAP here ({error}): install rosbag2_py and "
                    "rosbag2_storage_mcap, or set it to auto"
                ) from error
            shutil.rmtree(path, ignore_errors=True)
    return McapBag(path, compression)


class Rosbag2Bag:
    """See BagWriter. Raises ImportError without rosbag2_py, RuntimeError without its MCAP plugin."""

    def __init__(self, path: Path, compression: str = "none") -> None:
        self._path = path
        self._rosbag2: Any = importlib.import_module("rosbag2_py")
        self._writer: Any = self._rosbag2.SequentialWriter()
        path.parent.mkdir(parents=True, exist_ok=True)
        options = {"uri": str(path), "storage_id": "mcap", "storage_preset_profile": _PRESETS[compression]}
        self._writer.open(
            self._rosbag2.StorageOptions(**options), self._rosbag2.ConverterOptions("cdr", "cdr")
        )

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    def add(self, topic: Topic) -> None:
        """See BagWriter."""
        fields = {"name": topic.name, "type": topic.type, "serialization_format": "cdr"}
        convert = getattr(getattr(self._rosbag2, "_storage", self._rosbag2), "to_rclcpp_qos_vector", None)
        if convert is None:
            fields["offered_qos_profiles"] = topic.profiles_text(numbers=True)
        else:
            fields["offered_qos_profiles"] = convert(topic.profiles_text(), _QOS_VERSION)
        try:
            metadata = self._rosbag2.TopicMetadata(id=0, **fields)
        except TypeError:
            metadata = self._rosbag2.TopicMetadata(**fields)
        self._writer.create_topic(metadata)

    def write(self, topic: str, log_ns: int, data: bytes | bytearray) -> None:
        """See BagWriter."""
        self._writer.write(topic, bytes(data), log_ns)

    def flush(self) -> None:
        """See BagWriter; rosbag2 writes its chunks when they are full."""

    def close(self) -> None:
        """See BagWriter."""
        if hasattr(self._writer, "close"):
            self._writer.close()
        self._writer = None  # dropping the last reference closes it if it has no `close`

    def abandon(self) -> None:
        """See BagWriter."""
        self._writer = None
