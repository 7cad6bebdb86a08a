"""What is fuzzed, and what must hold whatever comes: a refusal in one sentence, or the right result.

Each target draws a good input, damages it (mostly), hands it to our code as a node would, and checks what
comes back against an oracle that shares no code with it: an encoder of its own, pixels picked one by one,
the picture before the damage.
"""

from __future__ import annotations

import math
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import cv2
import msgpack
import numpy as np
from campaign import Target
from fuzz_answers import ServerAnswers
from mutators import damaged, misspelt

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.parts import MAX_PIXELS
from vla_accel_ros.contract.sections.keys import keys_of
from vla_accel_ros.sensing.cameras.compressed import decode
from vla_accel_ros.sensing.cameras.image import ENCODINGS, ImageView, compressed_view, image_view, write_rgb
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.wire.arrays import pack, unpack
from vla_accel_ros.wire.keys import images_in, prompt_in, state_in

CONTRACTS = Path(__file__).resolve().parents[2] / "config" / "contracts"
SMALL = """robot: small
cameras:
  top: {topic: top/image, image: base_0_rgb, rate_hz: 30, max_age_s: 0.5}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.5}
joints:
  - {name: a, lower: -1.6, upper: 1.6, velocity: 3.0, acceleration: 20.0, action: delta}
  - {name: b, lower: 0.0, upper: 1.0, velocity: 4.0, acceleration: 40, action: absolute, unit: deg, sign: -1}
controllers:
  - {topic: arm/joint_trajectory, joints: [a, b]}
chunk: {step_dt_s: 0.05, max_age_s: 0.8}
"""
# Bytes of a pixel, and where in it red, green and blue are.
PICKED = {
    "rgb8": (3, (0, 1, 2)),
    "bgr8": (3, (2, 1, 0)),
    "8UC3": (3, (2, 1, 0)),
    "rgba8": (4, (0, 1, 2)),
    "bgra8": (4, (2, 1, 0)),
    "8UC4": (4, (2, 1, 0)),
    "mono8": (1, (0, 0, 0)),
    "8UC1": (1, (0, 0, 0)),
}
ODD_ENCODINGS = ("16UC1", "", "rgb16", "x" * 5000)
BYTES = {**{name: size for name, (size, _) in PICKED.items()}, "uyvy": 2, "yuyv": 2}


def check_sentence(error: BaseException) -> None:
    """A refusal is one sentence that a log can show."""
    sentence = str(error)
    assert sentence and "\n" not in sentence and len(sentence) < 2000, repr(sentence)


class Packer:
    """Writes plain CDR, field after field."""

    def __init__(self, order: str) -> None:
        self.order, self.body = order, bytearray()

    def number(self, kind: str, value: int) -> None:
        self.body += bytes(-len(self.body) % struct.calcsize(kind))
        self.body += struct.pack(self.order + kind, value)

    def text(self, value: bytes) -> None:
        self.number("I", len(value))
        self.body += value

    def message(self) -> bytes:
        return (b"\0\1\0\0" if self.order == "<" else b"\0\0\0\0") + bytes(self.body)


def packed_image(
    order: str,
    stamp_ns: int,
    frame: bytes,
    height: int,
    width: int,
    encoding: bytes,
    big: int,
    step: int,
    data: bytes,
) -> bytes:
    """A serialized sensor_msgs/Image."""
    packer = Packer(order)
    packer.number("i", stamp_ns // 1_000_000_000)
    packer.number("I", stamp_ns % 1_000_000_000)
    packer.text(frame)
    packer.number("I", height)
    packer.number("I", width)
    packer.text(encoding)
    packer.number("B", big)
    packer.number("I", step)
    packer.text(data)
    return packer.message()


def unpacked_image(message: bytes) -> tuple[int, bytes, int, int, bytes, int, bytes]:
    """Stamp [ns], frame, height, width, encoding, step and data of a serialized sensor_msgs/Image."""
    body, order = message[4:], "<" if message[1] else ">"

    def word(at: int, kind: str = "I") -> int:
        return struct.unpack_from(order + kind, body, at)[0]

    frame_end = 12 + word(8)
    size_at = frame_end + -frame_end % 4
    encoding_end = size_at + 12 + word(size_at + 8)
    step_at = encoding_end + 1 + -(encoding_end + 1) % 4
    data_at = step_at + 8
    return (
        word(0, "i") * 1_000_000_000 + word(4),
        body[12:frame_end],
        word(size_at),
        word(size_at + 4),
        body[size_at + 12 : encoding_end],
        word(step_at),
        body[data_at : data_at + word(step_at + 4)],
    )


class ImageMessages:
    """sensor_msgs/Image from the wire to the pixels of a slot."""

    def __init__(self) -> None:
        self._ingest = Ingest(small_contract())

    def __call__(self, chance: random.Random) -> str:
        message = self._message(chance)
        refusal = self._ingested(message)
        try:
            view = image_view(message)
        except ValueError as error:
            check_sentence(error)
            assert refusal, "the node takes what cannot be read"
            return "no message"
        self._check_fields(message, view)
        if view.height * view.width > 1 << 16:
            assert refusal, "no message here has so many pixels"
            return "no picture"
        out = np.full((view.height, view.width, 3), 0xAB, np.uint8)
        try:
            write_rgb(view, out)
        except ValueError as error:
            check_sentence(error)
            assert refusal, "the node takes what is no picture"
            return "no picture"
        assert not refusal, refusal
        self._check_pixels(view, out)
        return "picture"

    def _message(self, chance: random.Random) -> bytes:
        encoding = chance.choice(ENCODINGS) if chance.random() < 0.9 else chance.choice(ODD_ENCODINGS)
        height, width = (chance.choice((0, 1, 2, 3, 4, 6, 8, 12)) for _ in range(2))
        step = width * BYTES.get(encoding, 1) + chance.choice((0, 0, 1, 7))
        data = chance.randbytes(step * (height * 3 // 2 if encoding.startswith("nv") else height))
        message = packed_image(
            chance.choice("<>"),
            chance.randrange(2**31) * 1_000_000_000 + chance.randrange(10**9),
            chance.choice((b"\0", b"camera_optical_frame\0", "öß\0".encode(), b"x" * 90 + b"\0")),
            height,
            width,
            encoding.encode() + b"\0",
            chance.choice((0, 0, 1, 2)),
            step,
            data,
        )
        return damaged(chance, message) if chance.random() < 0.85 else message

    def _ingested(self, message: bytes) -> str:
        try:
            self._ingest.image("top", message, 0)
        except ValueError as error:
            check_sentence(error)
            return str(error)
        return ""

    def _check_fields(self, message: bytes, view: ImageView) -> None:
        """Read by another hand, which checks nothing, the fields are the same."""
        stamp_ns, frame, height, width, encoding, step, data = unpacked_image(message)
        assert (view.stamp_ns, view.height, view.width, view.step) == (stamp_ns, height, width, step)
        for text, raw in ((view.frame_id, frame), (view.encoding, encoding)):
            assert text == raw[:-1].decode("utf-8", "replace")
        assert view.data.tobytes() == data

    def _check_pixels(self, view: ImageView, out: np.ndarray) -> None:
        if view.encoding in PICKED:
            size, places = PICKED[view.encoding]
            for row in range(view.height):
                for column in range(view.width):
                    at = row * view.step + column * size
                    expected = [int(view.data[at + place]) for place in places]
                    assert out[row, column].tolist() == expected, (row, column)
        elif view.height and view.width:
            assert not (out == 0xAB).all() or (view.data == 0xAB).any(), "nothing was written"


class CompressedMessages:
    """sensor_msgs/CompressedImage from the wire to the decoded picture, by OpenCV's libjpeg and libpng."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._ingest = Ingest(small_contract("compressed"))
        self._files: list[tuple[str, bytes, np.ndarray]] = []
        for height, width in ((1, 1), (8, 8), (9, 17), (16, 24)):
            ramp = np.add.outer(np.arange(height) * 5, np.arange(width) * 3)[..., None] * [1, 2, 3]
            picture = (ramp + rng.integers(0, 40, (height, width, 3))).astype(np.uint8)
            for form, source, flags in (
                (".png", picture, []),
                (".png", picture[..., 0], []),
                (".png", np.dstack([picture, picture[..., :1]]), [cv2.IMWRITE_PNG_COMPRESSION, 0]),
                (".png", picture.astype(np.uint16) * 257, []),
                (".jpg", picture, []),
                (".jpg", picture[..., 0], [cv2.IMWRITE_JPEG_QUALITY, 30]),
                (".jpg", picture, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
                (".jpg", picture, [cv2.IMWRITE_JPEG_OPTIMIZE, 1, cv2.IMWRITE_JPEG_RST_INTERVAL, 1]),
            ):
                done, file = cv2.imencode(form, source, flags)
                good = cv2.imdecode(file, cv2.IMREAD_COLOR)
                assert done and good is not None
                self._files.append((form, file.tobytes(), good))

    def __call__(self, chance: random.Random) -> str:
        form, file, good = chance.choice(self._files)
        harm = chance.random()
        sent = damaged(chance, file) if harm < 0.8 else file
        packer = Packer(chance.choice("<>"))
        packer.number("i", 1)
        packer.number("I", chance.randrange(10**9))
        packer.text(b"camera\0")
        packer.text(
            chance.choice((b"jpeg\0", b"png\0", b"rgb8; jpeg compressed bgr8\0", b"x" * 5000 + b"\0"))
        )
        packer.text(sent)
        message = packer.message()
        if 0.7 < harm < 0.9:
            message = damaged(chance, message)
        try:
            self._ingest.compressed("top", message, 0)
            refusal = ""
        except ValueError as error:
            check_sentence(error)
            refusal = str(error)
        try:
            picture = decode(compressed_view(message), MAX_PIXELS)
        except ValueError as error:
            assert refusal == f"camera top: {error}"
            return f"{form[1:]} refused"
        assert not refusal, refusal
        assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
        if form == ".png" or harm >= 0.9:
            # libpng checks what it reads; a message with a damage elsewhere has the same picture.
            assert np.array_equal(picture, good), "a damaged picture was taken"
        return f"{form[1:]} decoded"


class Contracts:
    """A contract file, from the text to a Contract that nodes can live by."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vla_accel_ros-fuzz-")
        self._path = Path(self._folder.name) / "contract.yaml"
        self._large = [path.read_text() for path in sorted(CONTRACTS.glob("*.yaml"))]

    def __call__(self, chance: random.Random) -> str:
        good = chance.choice(self._large) if chance.random() < 0.1 else SMALL
        content = misspelt(chance, good).encode("utf-8", "surrogatepass")
        if chance.random() < 0.15:
            content = damaged(chance, content)
        self._path.unlink(missing_ok=True)  # ext4 waits for the disk where a file is written over
        self._path.write_bytes(content)
        try:
            contract = Contract.load(self._path)
        except ValueError as error:
            for mistake in str(error).split("\n  "):
                check_sentence(ValueError(mistake))
            assert str(error).startswith(self._folder.name), str(error)
            return "refused"
        except OSError as error:
            assert "urdf" in content.decode("utf-8", "replace"), error
            return "no urdf"
        self._check(contract)
        return "loaded"

    def _check(self, contract: Contract) -> None:
        names = contract.joint_names
        assert len(set(names)) == len(names) and names
        moved = [name for controller in contract.controllers for name in controller.joints]
        assert sorted(moved) == sorted(names)
        for joint in contract.joints:
            for number in (joint.lower, joint.upper, joint.velocity, joint.acceleration):
                assert math.isfinite(number)
            assert joint.lower < joint.upper and joint.velocity > 0 and joint.acceleration > 0
        for age in contract.max_ages_s.values():
            assert 0 < age < math.inf
        assert 0 < contract.chunk.step_dt_s < math.inf
        middle = np.array([(joint.lower + joint.upper) / 2 for joint in contract.joints])
        there = contract.to_policy(middle)
        assert np.isfinite(there).all()
        assert np.isfinite(contract.to_robot(there)).all()


class Frames:
    """Frames of openpi's websocket, and the requests in them. What was not damaged must come back."""

    KEYS = keys_of("native", ("base_0_rgb", "left_wrist_0_rgb"))
    DTYPES = ("<f4", "<f8", ">f4", "|u1", "<i8", "|b1", "<f2", "|O", "|V8", "<c8", "<U4", "S9", "(3,)<f4", "")

    def __call__(self, chance: random.Random) -> str:
        state = np.array([chance.gauss(0, 1) for _ in range(chance.choice((1, 6, 8, 14)))])
        height, width = chance.choice((1, 3, 4, 8)), chance.choice((1, 3, 8))
        picture = np.frombuffer(chance.randbytes(height * width * 3), np.uint8).reshape(height, width, 3)
        request = {"images": {"base_0_rgb": picture}, "state": state, "prompt": "reach", "extra": [1, None]}
        message = pack(request)
        how = chance.choice(("well", "bits", "dtype", "shape", "value"))
        if how == "bits":
            message = damaged(chance, message)
        elif how in ("dtype", "shape"):
            shape = [chance.choice((0, 1, 3, 2**31, 2**62, -1)) for _ in range(chance.choice((0, 1, 3, 40)))]
            array = {b"__ndarray__": True, b"data": chance.randbytes(8), b"shape": shape}
            array[b"dtype"] = chance.choice(self.DTYPES)
            message = msgpack.packb({"images": array, "state": [array] * 3, **self._other(chance)})
        elif how == "value":
            message = pack({**request, **self._other(chance)})
        try:
            read = unpack(message)
            pictures = images_in(read, self.KEYS, ("base_0_rgb", "left_wrist_0_rgb"))
            joints, prompt = state_in(read, self.KEYS), prompt_in(read, self.KEYS, "")
        except ValueError as error:
            check_sentence(error)
            assert how != "well" and len(str(error)) < 500, error
            return "refused"
        assert joints.dtype == np.float32 and joints.ndim == 1 and np.isfinite(joints).all()
        assert isinstance(prompt, str) and pictures
        for pixels in pictures.values():
            assert pixels.dtype == np.uint8 and pixels.shape[2:] == (3,) and pixels.size
        if how == "well":
            assert np.array_equal(pictures["base_0_rgb"], picture) and np.array_equal(
                joints, np.float32(state)
            )
        return "loaded"

    def _other(self, chance: random.Random) -> dict[str, object]:
        values: tuple[object, ...] = (
            None,
            True,
            -1,
            2**64 - 1,
            1e300,
            math.nan,
            "x" * 9,
            b"\xff\xd8",
            [],
            {},
            [[1.0]],
            {"a": [1]},
        )
        return {chance.choice(("images", "state", "prompt", "noise")): chance.choice(values)}


def small_contract(transport: str = "raw") -> Contract:
    """SMALL, with another transport of its camera."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(SMALL.replace("image: base", f"transport: {transport}, image: base"))
        file.flush()
        return Contract.load(file.name)


TARGETS: dict[str, Callable[[], Target]] = {
    "image": ImageMessages,
    "compressed": CompressedMessages,
    "contract": Contracts,
    "frames": Frames,
    "answers": ServerAnswers,
}
# Parts of all cases: reading YAML takes a hundred times as long as reading an image header or a frame.
SHARES = {"image": 0.5, "compressed": 0.4, "contract": 0.1, "frames": 10.0, "answers": 10.0}
