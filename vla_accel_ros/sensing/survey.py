"""What a robot offers, by what it publishes: cameras, joints, controllers and its description.

A graph (nodes/clients/surveyor.py) or a bag (tools/contract/bag.py) is read into a `Survey`, from which a
contract is written. Of each topic it keeps the times of the messages and the newest picture or position: a
rate is that of the stamps, since whoever listens for seconds may lose messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np

from vla_accel_ros.contract.checks.graph_check import IMAGE_TYPES, INFO_TYPE, JOINTS_TYPE
from vla_accel_ros.sensing.cameras.compressed import check_picture, decode
from vla_accel_ros.sensing.cameras.image import compressed_view, image_view, write_rgb

TYPES = (*IMAGE_TYPES.values(), JOINTS_TYPE)
"""Types of the messages that are read."""
DESCRIPTION = "robot_description"
_TRANSPORTS = {kind: transport for transport, kind in IMAGE_TYPES.items()}
_USUAL = re.compile(
    r"image|image_raw|image_color|image_rect\w*|compressed|color|rgb|frame|camera|cameras|image_mono"
)
"""Parts of a camera's topic that do not tell it from others."""
_MOST_MESSAGES = 2000


@dataclass
class Stream:
    """A topic of messages with stamps. type: such as sensor_msgs/msg/Image. stamps_ns, arrivals_ns: of its
    messages, oldest first. problem: why its messages cannot be used, a sentence; empty if they can.

    Of a camera: height, width, encoding, and the newest picture, uint8 [height, width, 3] RGB (None for a
    ring). Of joints: the newest positions by name.
    """

    topic: str
    type: str
    stamps_ns: list[int] = field(default_factory=list)
    arrivals_ns: list[int] = field(default_factory=list)
    problem: str = ""
    height: int = 0
    width: int = 0
    encoding: str = ""
    picture: np.ndarray | None = None
    positions: dict[str, float] = field(default_factory=dict)

    @property
    def transport(self) -> str:
        """Of a camera, in a contract's words."""
        return _TRANSPORTS[self.type]

    @property
    def rate_hz(self) -> float:
        """Messages a second, 0.0 if too few arrived."""
        for times in (self.stamps_ns, self.arrivals_ns):
            periods = np.diff(np.unique(times)) * 1e-9
            if len(periods):
                return float(1.0 / np.median(periods))
        return 0.0

    def arrived(self, stamp_ns: int, now_ns: int) -> None:
        """A message was received at now_ns."""
        if len(self.stamps_ns) < _MOST_MESSAGES:
            self.stamps_ns.append(stamp_ns)
            self.arrivals_ns.append(now_ns)

    def see(self, data: bytes) -> int:
        """Take the serialized picture of a camera; returns its stamp [ns]. Only the first is decoded."""
        if self.transport == "compressed":
            packed = compressed_view(data)
            if self.picture is None and not self.problem:
                header = check_picture(packed)
                self.height, self.width, self.encoding = header.height, header.width, packed.format
                self.picture = cv2.cvtColor(decode(packed), cv2.COLOR_BGR2RGB)
            return packed.stamp_ns
        view = image_view(data)
        if self.picture is None and not self.problem:
            self.height, self.width, self.encoding = view.height, view.width, view.encoding
            picture = np.empty((view.height, view.width, 3), np.uint8)
            write_rgb(view, picture)
            self.picture = picture
        return view.stamp_ns


@dataclass(frozen=True)
class ControllerOffer:
    """A controller. kind: in a contract's words, empty for one that takes no stream of positions. topic: of
    its commands. joints: in its order, empty if unknown. action: its FollowJointTrajectory, empty for none.
    state: such as active; empty if nobody says. origin: who said so, for a comment."""

    name: str
    kind: str
    topic: str
    joints: tuple[str, ...] = ()
    action: str = ""
    state: str = ""
    origin: str = ""


@dataclass
class Survey:
    """origin: what was read, in words. namespace: the robot's, with a slash in front, empty for none.

    streams: of cameras and joints by topic. infos: topics of CameraInfo. controllers: what takes commands.
    description: the robot's URDF; its origin in words.
    """

    origin: str
    namespace: str = ""
    streams: dict[str, Stream] = field(default_factory=dict)
    infos: list[str] = field(default_factory=list)
    controllers: list[ControllerOffer] = field(default_factory=list)
    description: str = ""
    description_origin: str = ""

    def note(self, topics: Mapping[str, Sequence[str]]) -> list[Stream]:
        """Note the topics of a graph or a bag by their types; returns new streams."""
        streams = [
            Stream(topic, kind)
            for topic, kinds in sorted(topics.items())
            for kind in kinds
            if kind in TYPES and topic not in self.streams and not topic.endswith("/compressedDepth")
        ]
        self.streams |= {stream.topic: stream for stream in streams}
        self.infos = sorted(topic for topic, kinds in topics.items() if INFO_TYPE in kinds)
        return streams

    def image(self, topic: str, data: bytes, now_ns: int) -> None:
        """A serialized Image or CompressedImage."""
        stream = self.streams[topic]
        try:
            stream.arrived(stream.see(data), now_ns)
        except ValueError as refusal:
            stream.problem = str(refusal)
            stream.arrived(0, now_ns)

    def handle(self, topic: str, size: tuple[int, int], encoding: str, stamp_ns: int, now_ns: int) -> None:
        """A FrameHandle. size: height and width."""
        stream = self.streams[topic]
        (stream.height, stream.width), stream.encoding = size, encoding
        stream.arrived(stamp_ns, now_ns)

    def joints(
        self, topic: str, names: Sequence[str], positions: Sequence[float], stamp_ns: int, now_ns: int
    ) -> None:
        """A JointState."""
        self.streams[topic].positions.update(zip(names, positions))
        self.streams[topic].arrived(stamp_ns, now_ns)

    @property
    def cameras(self) -> dict[str, Stream]:
        """Name -> the camera that a policy could be given. A picture that comes in several ways counts once,
        by the one that costs least: ring, raw, compressed."""
        streams = [s for s in self._own() if s.type != JOINTS_TYPE and s.arrivals_ns and not s.problem]
        streams.sort(key=lambda stream: ("ring", "raw", "compressed").index(stream.transport))
        chosen: dict[str, Stream] = {}
        for stream in streams:
            chosen.setdefault(re.sub(r"(/compressed|/frame|/image_raw)+$", "", stream.topic), stream)
        by_topic = sorted(chosen.values(), key=lambda stream: stream.topic)
        return dict(zip(_names([self.relative(stream.topic) for stream in by_topic]), by_topic))

    @property
    def unusable(self) -> list[Stream]:
        """Cameras whose messages no policy can be given, and those that sent nothing."""
        return [s for s in self._own() if s.type != JOINTS_TYPE and (s.problem or not s.arrivals_ns)]

    @property
    def joint_states(self) -> list[Stream]:
        """Topics of joints that sent something, those with most joints first."""
        streams = [s for s in self._own() if s.type == JOINTS_TYPE and s.positions]
        usual = [stream.topic.endswith("/joint_states") for stream in streams]
        ranked = sorted(zip(streams, usual), key=lambda pair: (-len(pair[0].positions), not pair[1]))
        return [stream for stream, _ in ranked]

    def relative(self, topic: str) -> str:
        """A topic as a contract names it: relative in the robot's namespace, absolute outside of it."""
        space = f"{self.namespace}/"
        return topic.removeprefix(space) if topic.startswith(space) and self.namespace else topic

    def info_of(self, camera: Stream) -> str:
        """The topic of its CameraInfo; empty for none."""
        beside = camera.topic.removesuffix("/compressed").rpartition("/")[0] + "/camera_info"
        return beside if beside in self.infos else ""

    def _own(self) -> list[Stream]:
        """The streams in the robot's namespace; of a kind that has none there, all."""
        inside = [s for s in self.streams.values() if s.topic.startswith(f"{self.namespace}/")]
        kinds = {stream.type == JOINTS_TYPE for stream in inside}
        return inside + [
            s for s in self.streams.values() if s not in inside and (s.type == JOINTS_TYPE) not in kinds
        ]


def _names(topics: Sequence[str]) -> list[str]:
    """Short names of cameras: the parts of their topics that tell them apart."""
    names: list[str] = []
    for topic in topics:
        parts = topic.strip("/").split("/")
        name = "_".join(part for part in parts if not _USUAL.fullmatch(part)) or parts[0]
        while name in names:
            name += "_"
        names.append(name)
    return names
