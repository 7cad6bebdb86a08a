"""Builders that the sensing tests share: messages as they come from a camera, and a contract."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing.cameras.image import ImageView, image_message
from vla_accel_ros.sensing.ingest import Ingest

S = 1_000_000_000
MS = S // 1000
SIM_ARM = Path(__file__).resolve().parents[2] / "config" / "contracts" / "sim_arm.yaml"


def make_contract() -> Contract:
    return Contract.load(SIM_ARM)


TASK = "reach the red block"


class Robot:
    """A robot's ingest, and its drivers of cameras and joints. task: its instruction, none if empty."""

    def __init__(self, contract: Contract | None = None, task: str = "") -> None:
        self.contract = contract or make_contract()
        self.ingest = Ingest(self.contract, page_lock=False)
        if task:
            self.ingest.instruct(task, "")

    def frame(self, camera: str, stamp_ns: int, value: int = 0, now_ns: int | None = None) -> None:
        """One of 4 x 6 pixels of this value."""
        message = image_message(stamp_ns, camera, np.full((4, 6, 3), value, np.uint8))
        self.ingest.image(camera, bytes(message), stamp_ns if now_ns is None else now_ns)

    def joints(self, *stamps_ns: int) -> None:
        """Joints that are 0.1 rad apart, and move by 1 rad/s."""
        for stamp_ns in stamps_ns:
            positions = (np.arange(6) * 0.1 + stamp_ns / S).tolist()
            self.ingest.joints(self.contract.joint_names, positions, stamp_ns, stamp_ns)


def make_view(
    data: np.ndarray | bytes,
    height: int,
    width: int,
    encoding: str,
    step: int | None = None,
    stamp_ns: int = 0,
) -> ImageView:
    """An image as its message would give it: `data` is all bytes, `step` those of a row."""
    flat = np.frombuffer(bytes(data), np.uint8)
    step = len(flat) // height if step is None else step
    return ImageView(stamp_ns, "camera", height, width, encoding, False, step, flat)


def pad_rows(rows: np.ndarray, padding: int) -> bytes:
    """uint8 [rows, n] with `padding` bytes of 0xEE behind each row."""
    flat = rows.reshape(len(rows), -1)
    return np.hstack([flat, np.full((len(rows), padding), 0xEE, np.uint8)]).tobytes()


def serialize_image(
    *,
    stamp: tuple[int, int] = (12, 345),
    frame_id: bytes = b"front",
    size: tuple[int, int] = (2, 3),
    encoding: bytes = b"rgb8",
    is_bigendian: int = 0,
    step: int = 9,
    data: bytes = bytes(range(18)),
    order: str = "<",
) -> bytes:
    """A sensor_msgs/Image in plain CDR of either endianness, written after the standard."""
    out = bytearray()

    def align(to: int) -> None:
        out.extend(bytes(-len(out) % to))

    def number(kind: str, value: int) -> None:
        align(struct.calcsize(order + kind))
        out.extend(struct.pack(order + kind, value))

    def text(value: bytes) -> None:
        number("I", len(value) + 1)
        out.extend(value + b"\0")

    number("i", stamp[0])
    number("I", stamp[1])
    text(frame_id)
    number("I", size[0])
    number("I", size[1])
    text(encoding)
    number("B", is_bigendian)
    number("I", step)
    number("I", len(data))
    out.extend(data)
    return (b"\x00\x01" if order == "<" else b"\x00\x00") + b"\x00\x00" + bytes(out)
