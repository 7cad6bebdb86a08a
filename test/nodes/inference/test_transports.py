"""The same pixels by every transport of a contract: the policy sees what the camera sent, or nothing.

As in test_image_topics the chunks of the node are compared with those of an engine in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml
from builders import make_checkpoint
from running import until
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState
from single_frames import SingleFrames

from vla_accel_msgs.msg import FrameHandle
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.messages.convert import handle_to_message, set_stamp
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.sensing.cameras.ring import RingWriter, ring_name
from vla_accel_ros.sensing.segment import segment_path
from vla_accel_ros.types import Chunk, Observation

HEIGHT, WIDTH = 30, 42
INSTRUCTION = "reach the green block"
KINDS = {"raw": Image, "compressed": CompressedImage, "ring": FrameHandle}


def write_contract(folder: Path, **transports: str) -> Path:
    """The simulated arm's contract with these transports of its cameras, each on topic camera/<name>/x."""
    contract = yaml.safe_load(demo_contract().read_text())
    for camera, transport in transports.items():
        topic, info = f"camera/{camera}/x", f"camera/{camera}/camera_info"
        contract["cameras"][camera] |= {"topic": topic, "transport": transport, "info": info}
    path = folder / "contract.yaml"
    path.write_text(yaml.safe_dump(contract))
    return path


class Cameras:
    """Drivers of the cameras of a contract, and of its joints."""

    def __init__(self, operator: Operator, contract: Contract) -> None:
        self._operator, self._contract, self._rings = operator, contract, ExitStack()
        self._frames = SingleFrames(operator)
        publish = operator.node.create_publisher
        self._publishers = {
            c.name: publish(KINDS[c.transport], c.topic, qos.SENSOR) for c in contract.cameras
        }
        self._infos = {c.name: publish(CameraInfo, c.info, qos.SENSOR) for c in contract.cameras}
        self._joints = publish(JointState, contract.joint_states.topic, qos.SENSOR)
        domain = operator.node.context.get_domain_id()
        self.writers = {
            c.name: self._rings.enter_context(RingWriter(ring_name(domain, "", c.name), HEIGHT, WIDTH))
            for c in contract.cameras
            if c.transport == "ring"
        }

    def close(self) -> None:
        self._rings.close()

    def send(self, images: dict[str, np.ndarray], positions: np.ndarray) -> int:
        """Send a frame of the present; returns its stamp."""
        stamp_ns = self._operator.now_ns()
        joints = JointState(name=list(self._contract.joint_names), position=positions.tolist())
        set_stamp(joints.header.stamp, stamp_ns)
        self._joints.publish(joints)
        for camera in self._contract.cameras:
            pixels = images[camera.name]
            if camera.transport == "ring":
                message = handle_to_message(self.writers[camera.name].write(pixels, stamp_ns), "optical")
            elif camera.transport == "compressed":
                message = CompressedImage(
                    format="png", data=cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()
                )
            else:
                message = Image(
                    height=HEIGHT, width=WIDTH, encoding="rgb8", step=3 * WIDTH, data=pixels.tobytes()
                )
            set_stamp(message.header.stamp, stamp_ns)
            self._publishers[camera.name].publish(message)
            self._infos[camera.name].publish(CameraInfo(height=HEIGHT, width=WIDTH + 1))
        return stamp_ns

    def chunk_of(self, images: dict[str, np.ndarray], positions: np.ndarray) -> Chunk:
        """A chunk of this frame, see SingleFrames."""
        return self._frames.chunk_of(lambda: self.send(images, positions), positions)


@pytest.fixture
def cameras(request, start, operator, tmp_path) -> Iterator[tuple]:
    """(Cameras, an engine like the node's in this process, the node) for the transports of the parameter."""
    path = write_contract(tmp_path, **request.param)
    contract, model = Contract.load(path), make_checkpoint(tmp_path / "model")
    cameras = Cameras(operator, contract)
    node = start(
        "inference",
        model=str(model),
        contract=str(path),
        steps=2,
        vision_hz=60.0,
        language_hz=0.0,
        autostart=True,
    )
    operator.instruct(INSTRUCTION)
    node.wait_for_log(f"instruction: '{INSTRUCTION}'")
    yield cameras, Load(model, EngineConfig(steps=2)).engine(contract), node
    cameras.close()


@pytest.mark.parametrize(
    "cameras",
    [
        {"front": "ring", "wrist": "ring"},
        {"front": "ring", "wrist": "raw"},
        {"front": "compressed", "wrist": "ring"},
    ],
    ids=lambda transports: "-".join(transports.values()),
    indirect=True,
)
def test_every_transport_brings_the_pixels_that_were_sent(cameras, operator, contract):
    cameras, engine, node = cameras
    rng = np.random.default_rng(0)
    for _ in range(3):
        pixels = {c.name: rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8) for c in contract.cameras}
        positions = rng.uniform(-0.5, 0.5, 6)
        chunk = cameras.chunk_of(pixels, positions)
        observation = Observation(
            {camera.image: pixels[camera.name] for camera in contract.cameras},
            contract.to_policy(positions).astype(np.float32),
            INSTRUCTION,
            chunk.stamp_ns,
        )
        with engine.observe(observation) as prefix:
            requests = iter(partial(engine.act, prefix), None)
            expected = next(own for own in requests if own.request_id == chunk.request_id)
        np.testing.assert_allclose(chunk.actions, contract.to_robot(expected.actions), atol=1e-5)
    assert f"camera_info is of {HEIGHT} x {WIDTH + 1}: calibrate" in node.log
    for camera in cameras.writers:

        def reported(camera: str = camera) -> bool:
            line = operator.diagnostics.get(f"inference: stream {camera}")
            values = {} if line is None else {pair.key: pair.value for pair in line.values}
            where = values.get("memory of the ring")
            return values.get("lost") == "0" and where in ("copied", "page-locked", "mapped")

        operator.wait(reported, 90.0, "diagnostics of the ring")


@pytest.mark.parametrize("cameras", [{"front": "ring", "wrist": "compressed"}], ids=["both"], indirect=True)
def test_what_cannot_be_used_is_refused_in_the_log_and_the_node_lives(cameras, operator, contract):
    cameras, _, node = cameras
    pixels = {c.name: np.zeros((HEIGHT, WIDTH, 3), np.uint8) for c in contract.cameras}
    cameras.chunk_of(pixels, np.zeros(6))
    stray = handle_to_message(cameras.writers["front"].handle, "optical")
    stray.ring = "nobody.has.this"
    cameras._publishers["front"].publish(stray)
    node.wait_for_log("camera front: ring 'nobody.has.this' does not exist: start its camera")
    cut = CompressedImage(format="jpeg", data=b"\xff\xd8\xff\xe0")
    cameras._publishers["wrist"].publish(cut)
    node.wait_for_log("camera wrist: compressed image of 4 bytes is a jpeg without its end")
    cameras.chunk_of(pixels, np.zeros(6))


def test_a_robot_whose_cameras_write_rings_is_driven_and_killed_and_leaves_nothing(
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
