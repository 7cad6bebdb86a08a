"""Any 8-bit camera by every transport through the real middleware: the policy sees what was sent, or nothing.

The chunks of the node are compared with those of an engine in this process that is given the pixels
directly; both draw the same noise, so one wrong pixel would show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from builders import CAMERAS, make_checkpoint, make_config
from running import NodeProcess, until
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState

from vla_accel_msgs.msg import FrameHandle, Observed
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.clients.viewer import Viewer
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.messages.convert import handle_to_message, set_stamp, stamp_ns
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sensing.cameras.ring import RingWriter, ring_name
from vla_accel_ros.sensing.segment import segment_path
from vla_accel_ros.types import Chunk, Observation

HEIGHT, WIDTH, PADDING = 30, 42, 10
INSTRUCTION = "reach the green block"
STEPS = 2
BEFORE = "before"
KINDS = {"raw": Image, "compressed": CompressedImage, "ring": FrameHandle}

Pixels = dict[str, np.ndarray]


def write_contract(folder: Path, **transports: str) -> Path:
    """The simulated arm's contract with these transports of its cameras, each on topic camera/<name>/x; of a
    ring, the frame before is an image, too."""
    contract = yaml.safe_load(demo_contract().read_text())
    for camera, transport in transports.items():
        topic, info = f"camera/{camera}/x", f"camera/{camera}/camera_info"
        contract["cameras"][camera] |= {"topic": topic, "transport": transport, "info": info}
        if transport == "ring":
            contract["cameras"][camera]["history"] = {BEFORE: 0.2}
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(contract))
    return path


def encode(rgb: np.ndarray, encoding: str = "rgb8") -> Image:
    """A message with rows longer than the pixels need, the rest being garbage."""
    pixels = {
        "rgb8": rgb,
        "bgr8": rgb[..., ::-1],
        "rgba8": np.dstack([rgb, np.full(rgb.shape[:2], 7, np.uint8)]),
        "mono8": rgb[..., :1],
    }[encoding]
    row = pixels.shape[1] * pixels.shape[2]
    rows = np.full((HEIGHT, row + PADDING), 0xAB, np.uint8)
    rows[:, :row] = pixels.reshape(HEIGHT, row)
    return Image(height=HEIGHT, width=WIDTH, encoding=encoding, step=row + PADDING, data=rows.tobytes())


class Robot:
    """The drivers of a contract's cameras and joints, the node, and an engine like its own here."""

    def __init__(self, operator: Operator, contract: Contract, node: NodeProcess, model: Path) -> None:
        self._operator, self.contract, self.node = operator, contract, node
        self._engine = Load(model, EngineConfig(steps=STEPS)).engine(contract)
        self._observed: dict[int, Observed] = {}
        operator.node.create_subscription(Observed, "observed", self._on_observed, qos.REPORT)
        publish = operator.node.create_publisher
        cameras = contract.cameras
        self.publishers = {c.name: publish(KINDS[c.transport], c.topic, qos.SENSOR) for c in cameras}
        self._infos = {c.name: publish(CameraInfo, c.info, qos.SENSOR) for c in cameras}
        self._joints = publish(JointState, contract.joint_states.topic, qos.SENSOR)
        domain = operator.node.context.get_domain_id()
        self.rings = {
            c.name: RingWriter(ring_name(domain, "", c.name), HEIGHT, WIDTH)
            for c in cameras
            if c.transport == "ring"
        }

    def message(self, camera: str, pixels: np.ndarray, encoding: str, now_ns: int) -> Any:
        """The camera's message of these pixels."""
        if camera in self.rings:
            return handle_to_message(self.rings[camera].write(pixels, now_ns), "optical")
        if self.publishers[camera].msg_type is CompressedImage:
            return CompressedImage(format="png", data=cv2.imencode(".png", pixels[..., ::-1])[1].tobytes())
        return encode(pixels, encoding)

    def send(self, pixels: Pixels, positions: np.ndarray, encoding: str) -> int:
        """Send a frame of the present; returns its stamp."""
        now_ns = self._operator.now_ns()
        joints = JointState(name=list(self.contract.joint_names), position=positions.tolist())
        set_stamp(joints.header.stamp, now_ns)
        self._joints.publish(joints)
        for camera in self.contract.cameras:
            before = [(image, now_ns - round(age_s * 1e9)) for image, age_s in camera.history]
            for name, taken_ns in (*before, (camera.name, now_ns)):
                message = self.message(camera.name, pixels[name], encoding, taken_ns)
                set_stamp(message.header.stamp, taken_ns)
                self.publishers[camera.name].publish(message)
            self._infos[camera.name].publish(CameraInfo(height=HEIGHT, width=WIDTH + 1))
        return now_ns

    def chunk_of(self, pixels: Pixels, positions: np.ndarray, encoding: str = "rgb8") -> Chunk:
        """A chunk of this frame, which is sent every 0.3 s as if it were new: what is lost on its way leaves
        the images or joints of the frame before."""
        sent_ns, state = set[int](), self.contract.to_policy(positions).astype(np.float32)

        def is_whole(chunk: Chunk) -> bool:
            observed = self._observed.get(chunk.kv_version)
            return (
                observed is not None
                and chunk.stamp_ns in sent_ns
                and len(observed.stamps) == len(self.contract.pictures)
                and {stamp_ns(stamp) for stamp in observed.stamps[:2]} == {chunk.stamp_ns}
                and np.allclose(observed.state, state, atol=1e-6)
                and (chunk.state is None or np.allclose(chunk.state, state, atol=1e-6))
            )

        def answered() -> Chunk | None:
            if not sent_ns or self._operator.now_ns() - max(sent_ns) > 300_000_000:
                sent_ns.add(self.send(pixels, positions, encoding))
            return next((r.chunk for r in self._operator.chunks if is_whole(r.chunk)), None)

        chunk = self._operator.wait(answered, 90.0, "chunk of a frame")
        assert chunk is not None
        return chunk

    def compare(self, seed: int, encoding: str = "rgb8") -> None:
        """Send a frame of noise, and compare its chunk with one of the same pixels."""
        rng, cameras = np.random.default_rng(seed), self.contract.pictures
        pixels = {c.name: rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8) for c in cameras}
        if encoding == "mono8":
            pixels = {name: np.repeat(rgb[..., :1], 3, axis=2) for name, rgb in pixels.items()}
        positions = rng.uniform(-0.5, 0.5, 6)
        chunk = self.chunk_of(pixels, positions, encoding)
        observation = Observation(
            {camera.image: pixels[camera.name] for camera in cameras},
            self.contract.to_policy(positions).astype(np.float32),
            INSTRUCTION,
            chunk.stamp_ns,
        )
        with self._engine.observe(observation) as prefix:
            requests = iter(partial(self._engine.act, prefix), None)
            expected = next(result for result in requests if result.request_id == chunk.request_id)
        np.testing.assert_allclose(chunk.actions, self.contract.to_robot(expected.actions), atol=1e-5)

    def _on_observed(self, message: Observed) -> None:
        self._observed[message.kv_version] = message
        self._operator.changed()


@contextmanager
def robot(start, operator, folder: Path, **transports: str) -> Iterator[Robot]:
    path, config = write_contract(folder, **transports), make_config(image_names=(*CAMERAS, BEFORE))
    model = make_checkpoint(folder / "model", config)
    parameters = {"steps": STEPS, "vision_hz": 60.0, "language_hz": 0.0, "autostart": True}
    node = start("inference", model=str(model), contract=str(path), **parameters)
    with ExitStack() as closing:
        robot = Robot(operator, Contract.load(path), node, model)
        for ring in robot.rings.values():
            closing.enter_context(ring)
        operator.instruct(INSTRUCTION)
        node.wait_for_log(f"instruction: '{INSTRUCTION}'")
        yield robot


def test_every_encoding_arrives_as_the_pixels_that_were_sent_and_another_is_refused(
    start, operator, tmp_path
):
    with robot(start, operator, tmp_path, front="raw", wrist="raw") as arm:
        for seed, encoding in enumerate(("rgb8", "bgr8", "rgba8", "mono8")):
            arm.compare(seed, encoding)
        bad = encode(np.zeros((HEIGHT, WIDTH, 3), np.uint8))
        bad.encoding = "mono16"
        arm.publishers["wrist"].publish(bad)
        arm.node.wait_for_log("camera wrist: image encoding 'mono16'")
        arm.compare(5)


def test_every_transport_brings_the_pixels_that_were_sent_and_refuses_others(start, operator, tmp_path):
    with robot(start, operator, tmp_path, front="ring", wrist="compressed") as arm:
        for seed in range(3):
            arm.compare(seed)
        assert f"camera_info is of {HEIGHT} x {WIDTH + 1}: calibrate" in arm.node.log

        def reported() -> bool:
            line = operator.diagnostics.get("inference: stream front")
            values = {} if line is None else {pair.key: pair.value for pair in line.values}
            memory = values.get("memory of the ring")
            return values.get("lost") == "0" and memory in ("copied", "page-locked", "mapped")

        operator.wait(reported, 90.0, "diagnostics of the ring")
        with Viewer() as viewer:
            session = viewer.await_session(60.0)
        places = dict(zip(session.cameras, session.topics, strict=True))
        assert places.keys() == {"front", "wrist", BEFORE} and places[BEFORE] == places["front"]
        handle = arm.rings["front"].handle
        assert handle is not None
        stray = handle_to_message(handle, "optical")
        stray.ring = "nobody.has.this"
        arm.publishers["front"].publish(stray)
        arm.node.wait_for_log("camera front: ring 'nobody.has.this' does not exist")
        arm.publishers["wrist"].publish(CompressedImage(format="jpeg", data=b"\xff\xd8\xff\xe0"))
        arm.node.wait_for_log("camera wrist: compressed image of 4 bytes")
        arm.compare(4)


def test_robot_whose_cameras_write_rings_is_driven_and_killed_and_leaves_nothing(
    start, operator, contract, tmp_path
):
    path = tmp_path / "contract.yaml"
    text = demo_contract().read_text()
    path.write_text(text.replace("/image_raw, image", "/frame, transport: ring, image"))
    model = make_checkpoint(tmp_path / "model")
    robot = start("sim_robot", ring=True, image_hz=0.0)
    node = start("inference", model=str(model), contract=str(path), steps=1, language_hz=0.0, autostart=True)
    operator.wait(lambda: operator.measured, 90.0, "joint state")
    operator.instruct(INSTRUCTION)
    operator.wait(lambda: operator.chunks, 120.0, "chunk")
    domain = operator.node.context.get_domain_id()
    segments = [segment_path(ring_name(domain, "", camera.name)) for camera in contract.cameras]
    assert all(segment.exists() for segment in segments)
    assert not operator.node.get_publishers_info_by_topic("/camera/front/image_raw")
    robot.kill()
    killed_ns = operator.now_ns()
    robot.start()
    operator.wait(lambda: operator.chunks[-1].chunk.stamp_ns > killed_ns, 120.0, "chunk of the new robot")
    node.kill()
    assert all(segment.exists() for segment in segments), "a reader takes nothing with it"
    robot.end()
    until(lambda: not any(segment.exists() for segment in segments), 90.0, "end of the segments")
