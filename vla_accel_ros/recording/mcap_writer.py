"""Writes a rosbag2 of one MCAP file, readable by `ros2 bag info`, `ros2 bag play` and Foxglove.

Messages are collected in chunks, and only whole chunks reach the disk, so after a crash everything up to the
last chunk can be read. When writing fails (a full disk, a quota, a cable) the file is truncated to there and
ended as the format allows without an index; readers then scan it. metadata.yaml is written at the end, as by
rosbag2; without it the file alone can still be played.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from io import FileIO
from pathlib import Path
from typing import Any, cast

import yaml
from mcap.data_stream import RecordBuilder
from mcap.records import DataEnd, Footer
from mcap.writer import MCAP0_MAGIC, CompressionType, Writer

from vla_accel_ros.recording.topic import Topic

CHUNK_BYTES = 4 << 20
_VERSION = 9
_COMPRESSIONS = {"none": CompressionType.NONE, "zstd": CompressionType.ZSTD}


class McapBag:
    """One thread calls all of it. path: a folder, which is created and must not exist yet. compression:
    "none" or "zstd".

    Raises OSError if the folder or the file cannot be created. All methods but `abandon` may raise OSError.
    """

    def __init__(self, path: Path, compression: str = "none") -> None:
        self._path = path
        path.mkdir(parents=True)
        self._file = path / f"{path.name}_0.mcap"
        self._out = _Out(self._file)
        self._writer = Writer(cast(Any, self._out), CHUNK_BYTES, _COMPRESSIONS[compression])
        self._topics: dict[str, Topic] = {}
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}
        self._counts: Counter[str] = Counter()
        self._first_ns, self._last_ns = 2**63 - 1, 0
        self._writer.start("ros2")
        self.flush()

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    def add(self, topic: Topic) -> None:
        """Add a topic, before its first message."""
        if topic.type not in self._schemas:
            self._schemas[topic.type] = self._writer.register_schema(
                topic.type, "ros2msg", topic.definition.encode()
            )
        self._channels[topic.name] = self._writer.register_channel(
            topic.name,
            "cdr",
            self._schemas[topic.type],
            {"offered_qos_profiles": topic.profiles_text(), "topic_type_hash": topic.digest},
        )
        self._topics[topic.name] = topic

    def write(self, topic: str, log_ns: int, data: bytes | bytearray) -> None:
        """Write a serialized message."""
        self._writer.add_message(self._channels[topic], log_ns, cast(bytes, data), log_ns)
        self._counts[topic] += 1
        self._first_ns, self._last_ns = min(self._first_ns, log_ns), max(self._last_ns, log_ns)
        self._out.mark()

    def flush(self) -> None:
        """Make everything written so far survive the process."""
        self._writer.flush()
        self._out.mark()

    def close(self) -> None:
        """End the bag properly."""
        self._writer.flush()
        self._out.mark()
        metadata = self._metadata()
        text = yaml.safe_dump(metadata["rosbag2_bagfile_information"], sort_keys=False)
        self._writer.add_metadata("rosbag2", {"serialized_metadata": text})
        self._writer.finish()
        self._out.close()
        (self._path / "metadata.yaml").write_text(yaml.safe_dump(metadata, sort_keys=False))

    def abandon(self) -> None:
        """Save what can be saved after an error; raises nothing."""
        with contextlib.suppress(OSError):
            self._out.cut()
            self._out.write(_ending())
        with contextlib.suppress(OSError):
            self._out.close()

    def _metadata(self) -> dict[str, Any]:
        topics = [
            {
                "topic_metadata": {
                    "name": topic.name,
                    "type": topic.type,
                    "serialization_format": "cdr",
                    "offered_qos_profiles": topic.profiles(),
                    "type_description_hash": topic.digest,
                },
                "message_count": self._counts[topic.name],
            }
            for topic in self._topics.values()
        ]
        return {
            "rosbag2_bagfile_information": {
                "version": _VERSION,
                "storage_identifier": "mcap",
                "relative_file_paths": [self._file.name],
                **self._extent(),
                "topics_with_message_count": topics,
                "compression_format": "",
                "compression_mode": "",
                "files": [{"path": self._file.name, **self._extent()}],
                "custom_data": None,
                "ros_distro": "unknown",
            }
        }

    def _extent(self) -> dict[str, Any]:
        count = self._counts.total()
        return {
            "duration": {"nanoseconds": max(0, self._last_ns - self._first_ns)},
            "starting_time": {"nanoseconds_since_epoch": self._first_ns if count else 0},
            "message_count": count,
        }


class _Out:
    """A file that remembers the end of its last whole record."""

    def __init__(self, path: Path) -> None:
        self._raw = FileIO(path, "x")
        self._at = self._whole = 0

    def write(self, data: bytes) -> int:
        unwritten = memoryview(data)
        while len(unwritten):
            unwritten = unwritten[self._raw.write(unwritten) :]
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        """Does nothing: there is no buffer."""

    def mark(self) -> None:
        """Everything written so far consists of whole records."""
        self._whole = self._at

    def cut(self) -> None:
        """Truncate the file to whole records."""
        self._raw.truncate(self._whole)
        self._raw.seek(0, os.SEEK_END)
        self._at = self._whole

    def close(self) -> None:
        self._raw.close()


def _ending() -> bytes:
    """The end of a file without a summary: no more data, no index, the magic."""
    records = RecordBuilder()
    DataEnd(0).write(records)
    Footer(summary_start=0, summary_offset_start=0, summary_crc=0).write(records)
    return records.end() + MCAP0_MAGIC
