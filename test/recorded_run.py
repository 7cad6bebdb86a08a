"""Bags of runs that never happened: an engine in this process, its messages written as a robot's are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from builders import make_checkpoint, make_config
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.chunking.rtc import RealTimeChunking, RtcSettings
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.session import Session, session_of
from vla_accel_ros.engine.streaming.ports import Text
from vla_accel_ros.models.checkpoints.checksum import checksum
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.interfaces import definition, type_name
from vla_accel_ros.nodes.messages import convert
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.option import options
from vla_accel_ros.recording.mcap_writer import McapBag
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.recording.topic import Topic
from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.tools.replay.again import Otherwise, replay
from vla_accel_ros.tools.replay.moments import Moments
from vla_accel_ros.tools.replay.report import Result
from vla_accel_ros.types import Chunk, Observation

PERIOD_NS = 100_000_000
START_NS = 1_000_000_000_000
AS_RECORDED = Otherwise()


def again(path: Path, otherwise: Otherwise = AS_RECORDED) -> tuple[Result, Moments]:
    """What a bag comes to when it is replayed, and what was read of it."""
    moments = Moments(Bag(path))
    return replay(moments, otherwise), moments


class Run:
    """A robot of the simulated arm's contract with a policy of random weights, and the bag of what it does.

    kind: of the policy. settings: of Load. rtc: chunks continue each other. jpeg: how the pictures travel.
    spoil: changes a picture, uint8 [H, W, 3], on its way into the bag (camera, frame, picture); None is lost.
    contract: another than the simulated arm's. beside, robot: another run, whose engine serves this robot too
    and whose bag this one writes to. apart: namespace of a robot that has an engine of its own there.
    """

    def __init__(
        self,
        folder: Path,
        kind: str = "pi05",
        rtc: RtcSettings | None = None,
        jpeg: Callable[[np.ndarray], bytes] | None = None,
        spoil: Callable[[str, int, np.ndarray], np.ndarray | None] = lambda camera, frame, picture: picture,
        contract: Path | None = None,
        beside: Run | None = None,
        robot: str = "",
        apart: str = "",
        **settings: Any,
    ) -> None:
        self._file, self._robot, self._apart = contract or demo_contract(), robot, apart
        self.contract = Contract.load(self._file)
        self.model, self.path = folder / "model", folder / "bag"
        if not self.model.exists():
            make_checkpoint(self.model, make_config(kind, horizon=16))
        of_engine = {name: settings.pop(name) for name in options(EngineConfig) if name in settings}
        config = EngineConfig(**{"steps": 2, **of_engine})
        self.load = Load(self.model, config, **settings)
        self.engine: Engine
        self._topics: set[str]
        if beside is None:
            self.engine, self._bag, self._topics = self.load.engine(self.contract), McapBag(self.path), set()
        else:
            self.engine, self._bag, self._topics = beside.engine, beside._bag, beside._topics
            if apart:
                self.engine = self.load.engine(self.contract)
            else:
                robots = self.engine.runner.robots
                robots.add(robot, self.load.embodiment(self.engine.policy, self.contract))
        self._rng = np.random.default_rng(7)
        self._jpeg, self._spoil = jpeg, spoil
        self._frame = 0
        self.session = self._session()
        self._now_ns = START_NS
        self._act: Callable[..., Chunk] = self.engine.act
        if rtc is not None:
            chunking = RealTimeChunking(self.engine, lambda: self._now_ns, rtc)
            chunking.resume()
            self._act = chunking.act

    def frames(self, count: int) -> Run:
        """See, act and speak so many times."""
        for _ in range(count):
            self._one()
        return self

    def tell(self, without: Sequence[str] = (), **changes: Any) -> Run:
        """Write the session, with changes; without: settings that its version did not have."""
        settings = {**json.loads(self.session.settings), **changes.pop("settings", {})}
        settings = {name: choice for name, choice in settings.items() if name not in without}
        session = replace(self.session, settings=json.dumps(settings), **changes)
        self.write(f"{self._space}/session", convert.session_to_message(session, START_NS))
        return self

    def write(self, topic: str, message: object, kind: str = "") -> None:
        """A message, or the bytes of one of that kind, into the bag."""
        kind = kind or type_name(type(message))
        if topic not in self._topics:
            self._topics.add(topic)
            self._bag.add(Topic(topic, kind, definition(kind), True))
        raw = message if isinstance(message, bytes | bytearray) else serialize_message(message)
        self._bag.write(topic, self._now_ns, raw)

    def end(self) -> Path:
        """End the bag; returns its folder."""
        self._bag.close()
        return self.path

    def _session(self) -> Session:
        return session_of(
            self.engine,
            self.load.settings,
            model=self.model,
            contract=Path(self._file).read_text(),
            urdf="" if self.contract.urdf is None else self.contract.urdf.read_text(),
            topics={picture.name: f"{self._space}/{picture.topic}" for picture in self.contract.pictures},
            checksum=checksum(self.model),
            robot=self._robot,
        )

    @property
    def _space(self) -> str:
        name = self._robot or self._apart
        return f"/{name}" if name else ""

    def observe(self, stamp_ns: int, state: np.ndarray, words: str) -> Observation:
        """What is seen at a time."""
        images, stamps_ns = {}, {}
        for number, camera in enumerate(self.contract.cameras):
            stamps_ns[camera.image] = stamp_ns + number
            picture = self._picture(camera.name, camera.topic, stamp_ns + number)
            images[camera.image] = camera.view(picture)
        return Observation(images, state, words, stamp_ns, stamps_ns=stamps_ns, robot=self._robot)

    def _one(self) -> None:
        stamp_ns = START_NS + self._frame * PERIOD_NS
        self._now_ns = stamp_ns + PERIOD_NS // 2
        state, felt = self._rng.uniform(-0.5, 0.5, (2, len(self.contract.state_names))).astype(np.float32)
        words = f"reach the {('red', 'blue')[self._frame % 5 == 4]} block"
        observation = self.observe(stamp_ns, state, words)
        with self.engine.observe(observation) as prefix:
            observed = convert.observed_to_message(prefix, observation, self.contract, self.session.id)
            self.write(f"{self._space}/observed", observed)
            chunk = self._act(prefix, felt if self.engine.policy.chain.takes_state else None)
            self.write(f"{self._space}/action_chunk", convert.chunk_to_message(chunk, self.contract, 0.01))
            if self._frame % 3 == 0 and self.engine.policy.chain.answers:
                with self.engine.ask(prefix, max_tokens=self.load.config.answer_tokens) as answer:
                    text = Text(prefix, self._frame, "".join(answer), finished=True)
                self.write(
                    f"{self._space}/language_output",
                    convert.text_to_message(replace(text, text="", finished=False)),
                )
                self.write(f"{self._space}/language_output", convert.text_to_message(text))
        self._frame += 1

    def _picture(self, camera: str, topic: str, stamp_ns: int) -> np.ndarray:
        """One that is seen, and written as it may have been spoilt."""
        picture = self._rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        written = self._spoil(camera, self._frame, picture.copy())
        if self._jpeg is None:
            if written is not None:
                raw = image_message(stamp_ns, camera, written)
                self.write(f"{self._space}/{topic}", raw, "sensor_msgs/msg/Image")
            return picture
        from vla_accel_ros.sensing.cameras.compressed import decode
        from vla_accel_ros.sensing.cameras.image import compressed_view

        message = CompressedImage(format="jpeg", data=self._jpeg(picture))
        convert.set_stamp(message.header.stamp, stamp_ns)
        self.write(f"{self._space}/{topic}", message)
        return np.ascontiguousarray(decode(compressed_view(serialize_message(message)))[..., ::-1])
