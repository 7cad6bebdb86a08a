"""Reads a rosbag2 of MCAP files from its beginning, finished or not, without ROS.

A bag whose recorder was killed has no index and ends in the middle of a chunk, but everything before that is
there. So files are read as a stream and never by their index, and a missing end is a fact about the bag
(`finished`), not an error. Messages are decoded by the definitions in the bag, not by the installed ones,
because a bag outlives those.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import yaml
from mcap.exceptions import EndOfFile, McapError
from mcap.reader import SeekingReader
from mcap.records import Channel, Chunk, Footer, McapRecord, Message, Schema
from mcap.stream_reader import StreamReader
from mcap.summary import Summary
from mcap_ros2.decoder import DecoderFactory

from vla_accel_ros.contract.files import bounded_yaml
from vla_accel_ros.models.json_file import check_pointer
from vla_accel_ros.recording.bounds import (
    MOST_RECORD_BYTES,
    MOST_TOPICS,
    Damaged,
    check_definition,
    chunk_records,
)

_ROS1_MAGIC = b"#ROSBAG"
_MAGIC = b"\x89MCAP0\r\n"
_UNDECODED = (struct.error, ValueError, EOFError, NotImplementedError, RecursionError)


@dataclass(frozen=True)
class Entry:
    """One recorded message. type: such as "std_msgs/msg/String". log_ns: when it was recorded. data:
    serialized. file, offset: where the record that holds it begins."""

    topic: str
    type: str
    log_ns: int
    data: bytes
    schema: Schema
    file: Path = Path()
    offset: int = 0

    @property
    def place(self) -> Place:
        """What `Bag.again` needs to read it again."""
        return Place(self.file, self.offset, self.topic, self.log_ns)


class Place(NamedTuple):
    """Where a message lies in a bag."""

    file: Path
    offset: int
    topic: str
    log_ns: int


class Bag:
    """The messages of a bag, in the order in which they were written.

    path: the bag's folder, or one of its files. Attributes, for the part read so far or after `survey`:
    `finished` (every file has its end), `topics` (name -> type), `offered` (name -> its QoS profiles, YAML),
    `extent_ns` (from the first to the last message; 0 if no index says it). Raises ValueError, one sentence,
    if it is not a bag of MCAP files; OSError if it cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.files = _files(self.path)
        for file in self.files:
            check_pointer(file)
        if all(file.stat().st_size < len(_MAGIC) for file in self.files):
            raise ValueError(
                f"{self.path} is empty, not even the beginning of a bag: record or copy it again"
            )
        self.finished = True
        self.topics: dict[str, str] = {}
        self.offered: dict[str, str] = {}
        self.extent_ns = 0
        # By content: in each file of a bag the numbers of the schemas may be others.
        self._decoders: dict[tuple[str, str, bytes], Callable[[bytes], Any] | None] = {}
        self._defined: dict[Path, tuple[dict[int, Schema], dict[int, Channel]]] = {}

    def entries(self, types: Collection[str] | None = None) -> Iterator[Entry]:
        """All messages, or those of some types. Raises ValueError if the bag is damaged."""
        self.finished = True
        for file in self.files:
            with file.open("rb") as stream:
                yield from self._read(file, stream, types)

    def again(self, place: Place) -> Entry:
        """The message at a place that `entries` has passed. Raises ValueError if it is there no more."""
        with place.file.open("rb") as stream:
            stream.seek(place.offset)
            for entry in self._read(place.file, stream, None):
                if entry.offset != place.offset:
                    break
                if (entry.topic, entry.log_ns) == (place.topic, place.log_ns):
                    return entry
        raise ValueError(f"{place.file} was changed while it was read: read it from its beginning again")

    def survey(self) -> None:
        """Find all topics: from the files' indices, or by reading the files without one."""
        first_ns: list[int] = []
        last_ns: list[int] = []
        for file in self.files:
            with file.open("rb") as stream:
                summary = _summary(stream)
                if summary is None:
                    stream.seek(0)
                    for _ in self._read(file, stream, ()):
                        pass
                else:
                    for channel in summary.channels.values():
                        self._note(channel, summary.schemas)
                    if summary.statistics is not None and summary.statistics.message_count:
                        first_ns.append(summary.statistics.message_start_time)
                        last_ns.append(summary.statistics.message_end_time)
        self.extent_ns = max(0, max(last_ns) - min(first_ns)) if first_ns else 0

    def namespaces(self, kind: str) -> list[str]:
        """The sorted namespaces of the topics of a type; a robot is where its session or its chunks are."""
        return sorted({topic.rpartition("/")[0] for topic, other in self.topics.items() if other == kind})

    def _note(self, channel: Channel, schemas: Mapping[int, Schema]) -> None:
        if len(self.topics) >= MOST_TOPICS and channel.topic not in self.topics:
            raise ValueError(f"{self.path} has more than {MOST_TOPICS} topics: no robot's bag has so many")
        self.topics[channel.topic] = schemas[channel.schema_id].name
        self.offered[channel.topic] = channel.metadata.get("offered_qos_profiles", "")

    def decode(self, entry: Entry) -> Any:
        """The message, its fields as attributes. Raises ValueError if it does not fit its type."""
        decoder = self._decoder(entry)
        if decoder is None:
            fix = "record it with a ROS 2 whose packages have .msg files"
            if entry.schema.encoding == "ros1msg":
                fix = "it comes from ROS 1, so convert the bag that it was made of with rosbags-convert"
            raise ValueError(
                f"{self.path}: {entry.topic} is defined in {entry.schema.encoding!r} and not in ros2msg: "
                f"{fix}"
            )
        try:
            return decoder(entry.data)
        except _UNDECODED as error:
            raise ValueError(
                f"{self.path}: a message on {entry.topic} is not a {entry.type}: "
                f"{error or type(error).__name__}"
            ) from error

    def _decoder(self, entry: Entry) -> Callable[[bytes], Any] | None:
        schema = entry.schema
        key = schema.name, schema.encoding, schema.data
        if key not in self._decoders:
            try:
                check_definition(schema)
                self._decoders[key] = DecoderFactory().decoder_for("cdr", schema)
            except Exception as error:  # the parser of definitions raises its own
                deep = isinstance(error, RecursionError)
                reason = "its definition is nested too deeply" if deep else error
                raise ValueError(f"{self.path}: {entry.topic} cannot be read: {reason}") from error
        return self._decoders[key]

    def _read(self, file: Path, stream: IO[bytes], types: Collection[str] | None) -> Iterator[Entry]:
        schemas, channels = self._defined.setdefault(file, ({}, {}))
        try:
            for offset, record in _records(stream):
                if isinstance(record, Message):
                    channel = channels[record.channel_id]
                    schema = schemas[channel.schema_id]
                    if types is None or schema.name in types:
                        yield Entry(
                            channel.topic, schema.name, record.log_time, record.data, schema, file, offset
                        )
                elif isinstance(record, Schema):
                    schemas[record.id] = schema = record
                elif isinstance(record, Channel):
                    channels[record.id] = record
                    self._note(record, schemas)
                elif isinstance(record, Footer):
                    return
        except EndOfFile:
            self.finished = False
        except (McapError, KeyError, struct.error, UnicodeDecodeError, Damaged) as error:
            raise ValueError(
                f"{file} is damaged, or not an MCAP file ({error or type(error).__name__}): copy it again"
            ) from error


def _records(stream: IO[bytes]) -> Iterator[tuple[int, McapRecord]]:
    """The records of a file from where it stands, with those inside chunks in place, and where each of its
    outer records begins. A message between chunks is damage: recorders write none there, and no checksum
    covers it."""
    chunked = False
    reader = StreamReader(
        cast(IO[bytes], _Whole(stream)),
        skip_magic=stream.tell() > 0,
        emit_chunks=True,
        record_size_limit=MOST_RECORD_BYTES,
    )
    records, offset = reader.records, stream.tell()
    for record in records:
        if isinstance(record, Chunk):
            chunked = True
            try:
                yield from ((offset, inner) for inner in chunk_records(record))
            except Exception as error:  # each compression raises its own errors
                raise Damaged(str(error) or type(error).__name__) from error
        elif chunked and isinstance(record, Message):
            raise Damaged("a message lies between two chunks")
        else:
            yield offset, record
        offset = stream.tell()


class _Whole:
    """A stream that returns all bytes asked for or raises EndOfFile, so that no record is incomplete."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, os.fstat(stream.fileno()).st_size - stream.tell()

    def read(self, size: int) -> bytes:
        if size > self._left:  # a damaged length may have any value
            raise EndOfFile
        data = self._stream.read(size)
        self._left -= len(data)
        if len(data) < size:
            raise EndOfFile
        return data


def _summary(stream: IO[bytes]) -> Summary | None:
    """The index of a file; None if it has none."""
    try:
        summary = SeekingReader(stream, record_size_limit=MOST_RECORD_BYTES).get_summary()
    except (McapError, struct.error, OSError):
        return None
    return summary if summary is not None and summary.channels else None


def _files(path: Path) -> list[Path]:
    if path.is_file():
        with path.open("rb") as stream:
            of_ros1 = stream.read(len(_ROS1_MAGIC)) == _ROS1_MAGIC
        if of_ros1 or path.suffix == ".bag":
            raise ValueError(f"{path} is a bag of ROS 1: {_from_ros1(path)}")
        _refuse_compressed(path, _listing(path.parent))
        return [path]
    if not path.is_dir():
        raise ValueError(f"{path} does not exist: give a bag's folder, or its .mcap file")
    listing = _listing(path)
    _refuse_compressed(path, listing)
    files = sorted(path.glob("*.mcap"), key=_number)
    if not files:
        present = sorted(p.name for p in path.iterdir())
        bag = next((name for name in present if name.endswith(".bag")), None)
        fix = "give a bag's folder, or its .mcap file"
        if any(name.endswith(".db3") for name in present):
            fix = "ros2 bag convert it to mcap"
        elif bag is not None:
            fix = f"{bag} is of ROS 1, {_from_ros1(path / bag)}"
        raise ValueError(f"{path} has no .mcap file (but {present}): {fix}")
    listed = [path / name for name in _names(listing)]
    missing = [file.name for file in listed if file not in files]
    if 0 < len(missing) < len(listed):
        raise ValueError(
            f"{path / 'metadata.yaml'} lists {', '.join(missing)}, which is not there: copy it, or run "
            f"ros2 bag reindex {path} -s mcap to read the bag with that gap"
        )
    return listed if set(listed) == set(files) else files


def _from_ros1(bag: Path) -> str:
    target = bag.with_suffix("")
    return f"pip install rosbags; rosbags-convert --src {bag} --dst {target} --dst-storage mcap"


def _listing(folder: Path) -> dict[str, Any]:
    """What a bag's metadata.yaml says of it; empty if there is none that can be read."""
    try:
        text = (folder / "metadata.yaml").read_text()
        listed = bounded_yaml.load(text, most_bytes=bounded_yaml.MOST_LISTING_BYTES)
        info = listed["rosbag2_bagfile_information"]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}


def _names(listing: Mapping[str, Any]) -> list[str]:
    """The files that metadata.yaml lists, in order."""
    names = listing.get("relative_file_paths")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _refuse_compressed(path: Path, listing: Mapping[str, Any]) -> None:
    """Raises ValueError for a bag, or a file of one, that rosbag2 compressed by file or message. Chunks that
    MCAP itself compressed are read."""
    mode = listing.get("compression_mode")
    if mode in ("FILE", "MESSAGE") and (path.is_dir() or path.name in _names(listing)):
        raise ValueError(
            f"{path} was recorded with --compression-mode {mode.lower()}, which is not read: ros2 bag "
            "convert it to mcap without, and record with --storage-preset-profile zstd_fast instead"
        )


def _number(path: Path) -> tuple[int, str]:
    """Key that sorts split bags by the number at their end: _2 before _10."""
    end = path.stem.rpartition("_")[2]
    return (int(end) if end.isdigit() else 0, path.name)
