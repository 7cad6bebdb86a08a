"""Any 8-bit camera through the real middleware: what the policy sees is what the camera sent.

The chunks of the node are compared with those of an engine in this process that is given the pixels
directly; both draw the same noise, so one wrong pixel would show.
"""

from __future__ import annotations

import numpy as np
import pytest
from builders import make_checkpoint
from sensor_msgs.msg import Image, JointState
from single_frames import SingleFrames

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.nodes import qos
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.inference.loading import Load
from vla_accel_ros.nodes.messages.convert import set_stamp
from vla_accel_ros.types import Chunk, Observation

HEIGHT, WIDTH = 30, 42
PADDING = 10
INSTRUCTION = "reach the green block"


def encode(rgb: np.ndarray, encoding: str) -> Image:
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


class Cameras:
    """Drivers of both cameras and of the joints; all of a frame has one stamp."""

    def __init__(self, operator: Operator) -> None:
        self._operator, contract = operator, operator.contract
        self._frames = SingleFrames(operator)
        publish = operator.node.create_publisher
        self._images = {c.name: publish(Image, c.topic, qos.SENSOR) for c in contract.cameras}
        self._joints = publish(JointState, contract.joint_states.topic, qos.SENSOR)

    def send(self, images: dict[str, Image], positions: np.ndarray) -> int:
        """Send a frame of the present; returns its stamp."""
        stamp_ns = self._operator.now_ns()
        joints = JointState(name=list(self._operator.contract.joint_names), position=positions.tolist())
        set_stamp(joints.header.stamp, stamp_ns)
        self._joints.publish(joints)
        for name, image in images.items():
            set_stamp(image.header.stamp, stamp_ns)
            self._images[name].publish(image)
        return stamp_ns

    def chunk_of(self, images: dict[str, Image], positions: np.ndarray) -> Chunk:
        """A chunk of this frame, see SingleFrames."""
        return self._frames.chunk_of(lambda: self.send(images, positions), positions)


def test_every_encoding_arrives_as_the_pixels_that_were_sent(start, operator, contract, tmp_path):
    model = make_checkpoint(tmp_path / "model")
    node = start("inference", model=str(model), steps=4, vision_hz=60.0, language_hz=0.0, autostart=True)
    cameras = Cameras(operator)
    operator.instruct(INSTRUCTION)
    node.wait_for_log(f"instruction: '{INSTRUCTION}'")
    engine = Load(model, EngineConfig(steps=4)).engine(contract)
    rng = np.random.default_rng(0)
    for encoding in ("rgb8", "bgr8", "rgba8", "mono8"):
        pixels = {c.name: rng.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8) for c in contract.cameras}
        if encoding == "mono8":
            pixels = {name: np.repeat(rgb[..., :1], 3, axis=2) for name, rgb in pixels.items()}
        positions = rng.uniform(-0.5, 0.5, 6)
        chunk = cameras.chunk_of({n: encode(rgb, encoding) for n, rgb in pixels.items()}, positions)
        observation = Observation(
            {camera.image: pixels[camera.name] for camera in contract.cameras},
            contract.to_policy(positions).astype(np.float32),
            INSTRUCTION,
            chunk.stamp_ns,
        )
        with engine.observe(observation) as prefix:
            requests = iter(lambda: engine.act(prefix), None)
            expected = next(own for own in requests if own.request_id == chunk.request_id)
        np.testing.assert_allclose(chunk.actions, contract.to_robot(expected.actions), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"encoding": "mono16"}, "image encoding 'mono16' is not 8-bit colour"),
        ({"step": 3}, "image step is 3, less than the 126 bytes"),
        ({"height": 99}, "rows of step"),
    ],
)
def test_an_image_that_cannot_be_used_is_refused_in_the_log_and_the_node_lives(
    start, operator, contract, tmp_path, changes, sentence
):
    model = make_checkpoint(tmp_path / "model")
    node = start("inference", model=str(model), steps=1, vision_hz=60.0, autostart=True)
    cameras = Cameras(operator)
    operator.instruct(INSTRUCTION)
    node.wait_for_log("instruction:")
    good = {
        camera.name: encode(np.zeros((HEIGHT, WIDTH, 3), np.uint8), "rgb8") for camera in contract.cameras
    }
    bad = encode(np.zeros((HEIGHT, WIDTH, 3), np.uint8), "rgb8")
    for name, value in changes.items():
        setattr(bad, name, value)
    cameras.chunk_of(good, np.zeros(6))
    cameras.send({**good, "wrist": bad}, np.zeros(6))
    assert sentence in node.wait_for_log("camera wrist: image")
    cameras.chunk_of(good, np.zeros(6))
