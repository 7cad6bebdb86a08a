"""Film the run: both cameras side by side, with the instruction, the model's answer, and the truth.

While the robot runs, a frame costs only its JPEG compression; captions and film are made afterwards. Every
second frame is kept, of the last FILM_S seconds, so that a run of hours fills no memory. The images are the
policy's own, enlarged: the film shows what the model saw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from vla_accel_ros.nodes.messages.convert import stamp_ns
from vla_accel_ros.tools.demo.play import Board

if TYPE_CHECKING:
    from sensor_msgs.msg import Image

    from vla_accel_ros.nodes.clients.operator import Operator

FILM_HZ = 15
FILM_S = 180
SIDE, GAP, TOP, BOTTOM = 448, 24, 88, 96  # px
SIZE = (3 * GAP + 2 * SIDE, TOP + SIDE + BOTTOM)  # width, height
LONGEST_GAP_S = 1.0
GROUND, TEXT, DIM = (17, 20, 24), (236, 238, 240), (140, 148, 158)
GOOD, WARN, BAD = (76, 195, 138), (245, 184, 61), (229, 92, 96)


@dataclass(frozen=True)
class Caption:
    """The text above and below a frame. finished: the answer is complete. outcome: empty while the episode
    runs."""

    episode: int
    wanted: int | None
    instruction: str
    changed: bool
    answer: str
    finished: bool
    truth: str
    outcome: str


@dataclass(frozen=True)
class Frame:
    """JPEGs of the cameras, in the contract's order, at one time."""

    stamp_ns: int
    time_s: float
    pictures: tuple[bytes, ...]
    caption: Caption


class Film:
    """Collects frames as they arrive; `write` makes the film. cameras: in order from left to right."""

    def __init__(self, cameras: Sequence[str], board: Board) -> None:
        self.frames: deque[Frame] = deque(maxlen=FILM_S * FILM_HZ)
        self.operator: Operator | None = None
        self._cameras, self._board = tuple(cameras), board
        self._newest: dict[str, bytes] = {}
        self._kept_ns = 0

    def on_image(self, camera: str, message: Image) -> None:
        """Take an image (rgb8). Runs in the operator's thread."""
        board, now_ns = self._board, stamp_ns(message.header.stamp)
        due = now_ns - self._kept_ns >= 0.9e9 / FILM_HZ
        if board.plan is None or not due:
            return
        rows = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
        rgb = rows[:, : 3 * message.width].reshape(message.height, message.width, 3)
        self._newest[camera] = _jpeg(rgb)
        if set(self._newest) == set(self._cameras):
            pictures = tuple(self._newest[name] for name in self._cameras)
            self._newest.clear()
            self._kept_ns = now_ns
            self.frames.append(
                Frame(now_ns, (now_ns - board.begun_ns) * 1e-9, pictures, self._caption(board))
            )

    def _caption(self, board: Board) -> Caption:
        assert board.plan is not None
        truth = self.operator.truth if self.operator is not None else None
        answer = self.operator.answer if self.operator is not None else None
        fresh = answer is not None and stamp_ns(answer.header.stamp) > board.begun_ns
        return Caption(
            episode=board.plan.index + 1,
            wanted=board.wanted,
            instruction=board.said,
            changed=board.changed,
            answer=answer.text.strip() if answer is not None and fresh else "",
            finished=answer is not None and fresh and answer.finished,
            truth=truth.answer if truth is not None else "",
            outcome=board.outcome,
        )

    def write(self, path: Path) -> None:
        """Write an MP4 of FILM_HZ frames a second. Raises RuntimeError if OpenCV cannot, or if no frame
        arrived."""
        if not self.frames:
            raise RuntimeError(
                f"no camera image arrived, so there is no film {path}: look at the nodes' logs"
            )
        writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), FILM_HZ, SIZE)  # type: ignore[attr-defined]
        if not writer.isOpened():
            raise RuntimeError(
                f"OpenCV cannot write {path}: give a writable folder, or pip install opencv-python"
            )
        for frame, repeats in _paced(tuple(self.frames)):
            picture = draw(frame)[..., ::-1]
            for _ in range(repeats):
                writer.write(picture)
        writer.release()


def draw(frame: Frame) -> np.ndarray:
    """Return a frame with its captions, uint8 [SIZE[1], SIZE[0], 3] RGB."""
    canvas = _strips(frame.caption).copy()
    for i, jpeg in enumerate(frame.pictures):
        rgb = np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR))[..., ::-1]
        left = GAP + i * (SIDE + GAP)
        canvas[TOP : TOP + SIDE, left : left + SIDE] = cv2.resize(
            rgb, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC
        )
    clock = _text(f"{max(frame.time_s, 0.0):.1f} s", 20, DIM, bold=False)
    height, width = clock.shape[:2]
    canvas[18 : 18 + height, SIZE[0] - GAP - width : SIZE[0] - GAP] = clock
    return canvas


@lru_cache(maxsize=64)
def _strips(caption: Caption) -> np.ndarray:
    """Return the frame without its images and clock."""
    picture = Picture.new("RGB", SIZE, GROUND)
    pen = ImageDraw.Draw(picture)

    def write(x: int, y: int, text: str, size: int, colour: tuple[int, int, int], bold: bool = False) -> int:
        font, text = _font(size, bold), " ".join(text.splitlines())
        pen.text((x, y), text, font=font, fill=colour)
        return x + round(pen.textlength(text, font=font))

    number = f"episode {caption.episode}" + (f" of {caption.wanted}" if caption.wanted else "")
    x = write(GAP, 18, number, 16, DIM)
    if caption.changed:
        write(x + 14, 18, "instruction changed on the way", 16, WARN)
    write(GAP, 44, f"“{caption.instruction}”", 26, TEXT, bold=True)
    low = TOP + SIDE + 14
    right = caption.answer == caption.truth
    x = write(GAP, low + 5, "the model says", 16, DIM)
    colour = GOOD if right else WARN if caption.finished else TEXT
    write(x + 12, low, caption.answer or "…", 23, colour, bold=True)
    x = write(GAP, low + 43, "it is truly", 16, DIM)
    write(x + 12, low + 43, caption.truth, 16, DIM)
    if caption.outcome:
        good = caption.outcome == "success"
        font = _font(26, True)
        wide = pen.textlength(caption.outcome, font=font)
        write(round(SIZE[0] - GAP - wide), low + 14, caption.outcome, 26, GOOD if good else BAD, bold=True)
    return np.asarray(picture)


@lru_cache(maxsize=512)
def _text(text: str, size: int, colour: tuple[int, int, int], bold: bool) -> np.ndarray:
    font = _font(size, bold)
    edge, _, right, bottom = font.getbbox(text)
    picture = Picture.new("RGB", (round(right - edge) + 1, round(bottom) + 2), GROUND)
    ImageDraw.Draw(picture).text((-edge, 0), text, font=font, fill=colour)
    return np.asarray(picture)


@lru_cache(maxsize=16)
def _font(size: int, bold: bool) -> Any:
    """Return DejaVu, which comes with matplotlib."""
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def _jpeg(rgb: np.ndarray) -> bytes:
    return bytes(cv2.imencode(".jpg", rgb[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, 95))[1])


def _paced(frames: Sequence[Frame]) -> Iterator[tuple[Frame, int]]:
    """Yield each frame with its number of repeats, so that the film runs in real time; longer gaps than
    LONGEST_GAP_S are shortened."""
    written = 0
    film_s = 0.0
    for frame, following in zip(frames, (*frames[1:], None)):
        length_s = 1.0 if following is None else (following.stamp_ns - frame.stamp_ns) * 1e-9
        film_s += min(max(length_s, 0.0), LONGEST_GAP_S)
        repeats = max(0, round(film_s * FILM_HZ) - written)
        written += repeats
        if repeats:
            yield frame, repeats
