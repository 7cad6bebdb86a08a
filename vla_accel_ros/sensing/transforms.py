"""Poses of hands by tf: the newest transform of every frame, and where a hand was at an image's stamp.

tf2's own buffer is in none of the wheels that this package is installed from, so this is a small one. A pose
is composed from the newest transforms along the tree, and is as old as the oldest of those that change. Its
history is that of a joint (joints.py): interpolated, never extrapolated. One sentence names the frame that
is missing, too old, broken, in a loop, or sent by two publishers in turn; then there is no new pose.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vla_accel_ros.control.following.reasons import listed
from vla_accel_ros.control.kinematics.hand import Tf
from vla_accel_ros.control.kinematics.rotations import pinocchio
from vla_accel_ros.sensing.joints import JointHistory

Transform = tuple[str, str, Sequence[float], int]
"""A frame, its parent, x to qw of the frame in the parent [m], and the stamp [ns]."""
POSE = ("x", "y", "z", "qx", "qy", "qz", "qw")
_FRAMES = 4096
_JUMP_NS = 500_000_000
_NOT_UNIT = 1e-2
"""How far the square of a quaternion's length may be from 1; tf2's own limit."""
_FAR, _RETURN = 1e-2, 0.1
"""A frame that goes further than this [m + rad] and comes back to within this share of it has alternated."""
_RETURNS, _WITHIN_NS = 4, 1_000_000_000
"""Two publishers: so often within this time."""
_LEAP, _LEAP_RETURN, _LEAPS_WITHIN_NS = 0.1, 0.3, 10_000_000_000
"""Or so often within this, if it goes as far as no noise does, and comes back as no arm can: one of the two
may send once in three seconds."""
_ACCELERATION = 200.0
"""What no arm has [(m + rad)/s2]."""


@dataclass(eq=False)
class _Edge:
    """The newest transform of a frame. stamp_ns: None if static. before: parent, numbers and stamp of the one
    before. returns_ns: when it alternated last; leaps_ns: as no arm can."""

    parent: str
    numbers: Sequence[float]
    stamp_ns: int | None
    before: tuple[str, Sequence[float], int | None] | None = None
    returns_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_RETURNS))
    leaps_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_RETURNS))

    def take(self, new: _Edge, now_ns: int) -> None:
        """Replace it by a newer one. One that is not newer is ignored, unless the clock was set back."""
        stamps, same = (self.stamp_ns, new.stamp_ns), self.parent == new.parent
        back_ns = 0 if None in stamps else stamps[0] - stamps[1]  # type: ignore[operator]
        same &= (stamps[0] is None) == (stamps[1] is None) and back_ns <= _JUMP_NS
        stale = same and None not in stamps and back_ns >= 0
        way = _distance(self.numbers, new.numbers)
        twice = stale and back_ns == 0 and way > _FAR
        if not same or twice or (not stale and self._returns(new, way, _FAR, _RETURN)):
            self.returns_ns.append(now_ns)
        if twice or (not stale and self._leaps(new, way)):
            self.leaps_ns.append(now_ns)
        if not stale:
            self.before = self.parent, self.numbers, self.stamp_ns
            self.parent, self.numbers, self.stamp_ns = new.parent, new.numbers, new.stamp_ns

    def _returns(self, new: _Edge, way: float, far: float, share: float) -> bool:
        """Whether a newer one, `way` from this, is where the one before was, within this share of `way`."""
        return self.before is not None and way > far and _distance(self.before[1], new.numbers) < share * way

    def _leaps(self, new: _Edge, way: float) -> bool:
        """Whether it was in another place or parent, and a newer one is back sooner than an arm can be."""
        if self.before is None or self.before[0] != new.parent:
            return False
        if self.parent != new.parent:
            way = 1.0
        elif not self._returns(new, way, _LEAP, _LEAP_RETURN):
            return False
        since_s = ((new.stamp_ns or 0) - (self.before[2] or 0)) * 1e-9
        return 8.0 * way > _ACCELERATION * since_s**2

    def problem(self, now_ns: int, max_age_s: float) -> str:
        """What is wrong with it apart from its age, the end of a sentence; empty if nothing is."""
        if self.stamp_ns is not None and (ahead_s := (self.stamp_ns - now_ns) * 1e-9) > max_age_s:
            return f"is stamped {ahead_s:.3f} s in the future: synchronise the clocks"
        if not all(map(math.isfinite, self.numbers)):
            return "is not finite"
        if abs(sum(x * x for x in self.numbers[3:]) - 1.0) > _NOT_UNIT:
            return f"has the quaternion {[round(x, 4) for x in self.numbers[3:]]}, whose length is not 1"
        often = len(self.returns_ns) == _RETURNS and now_ns - self.returns_ns[0] <= _WITHIN_NS
        if len(self.leaps_ns) == _RETURNS:
            first_ns, last_ns = self.leaps_ns[0], self.leaps_ns[-1]
            often |= now_ns - last_ns <= last_ns - first_ns <= _LEAPS_WITHIN_NS
        if often:
            return "comes from two publishers in turn: stop one of them"
        return ""


def _distance(start: Sequence[float], end: Sequence[float]) -> float:
    """[m + rad]."""
    cosine = abs(sum(x * y for x, y in zip(start[3:], end[3:])))
    return math.dist(start[:3], end[:3]) + math.sqrt(8.0 * max(0.0, 1.0 - cosine))


def transforms_of(message: Any) -> list[Transform]:
    """Those of a TFMessage, also of one decoded from a bag."""
    return [_transform(each) for each in message.transforms]


def _transform(message: Any) -> Transform:
    at, turn, stamp = message.transform.translation, message.transform.rotation, message.header.stamp
    numbers = at.x, at.y, at.z, turn.x, turn.y, turn.z, turn.w
    stamp_ns = stamp.sec * 1_000_000_000 + stamp.nanosec
    return message.child_frame_id, message.header.frame_id, numbers, stamp_ns


class Transforms:
    """The newest transform of each frame."""

    def __init__(self) -> None:
        self._edges: dict[str, _Edge] = {}

    def clear(self) -> None:
        """Forget all but those that are static, which are sent only once."""
        self._edges = {frame: edge for frame, edge in self._edges.items() if edge.stamp_ns is None}

    def add(self, transform: Transform, static: bool, now_ns: int) -> None:
        """Take a transform. Frames beyond the first 4096 are ignored."""
        frame, parent, numbers, stamp_ns = transform
        new = _Edge(parent, numbers, None if static else stamp_ns)
        if frame in self._edges:
            self._edges[frame].take(new, now_ns)
        elif len(self._edges) < _FRAMES:
            self._edges[frame] = new

    def pose(self, hand: Tf, now_ns: int) -> tuple[np.ndarray, int, str]:
        """x to qw of a hand, float64 [7], the stamp of the oldest transform on the way that changes, and its
        frame. Raises ValueError, one sentence that names the frame, if there is none."""
        base, tip = hand.base, hand.tip
        above, below = self._ancestors(base), self._ancestors(tip)
        roots, higher = (above[-1], below[-1]), frozenset(above)
        common = next((frame for frame in below if frame in higher), None)
        up, down = (x[: -1 if common is None else x.index(common)] for x in (above, below))
        edges = {frame: self._edges[frame] for frame in (*up, *down)}
        for frame, edge in edges.items():
            if problem := edge.problem(now_ns, hand.max_age_s):
                raise ValueError(f"frame {frame} in {edge.parent} {problem}")
        if common is None:
            raise ValueError(
                f"there is no transform from {base} to {tip}, whose trees begin at {' and '.join(roots)}: "
                "start what connects them, or fix tf_base and tf_tip"
            )
        stamps = [(edge.stamp_ns, frame) for frame, edge in edges.items() if edge.stamp_ns is not None]
        if not stamps:
            raise ValueError(f"nothing moves {tip} in {base}, all is static: fix tf_base and tf_tip")
        stamp_ns, oldest = min(stamps)
        pose = self._product(up).actInv(self._product(down))
        return np.asarray(pinocchio().SE3ToXYZQUAT(pose)), stamp_ns, oldest

    def _ancestors(self, frame: str) -> list[str]:
        """The frame, its parent and so on."""
        frames = {frame: None}
        while (edge := self._edges.get(frame)) is not None:
            frame = edge.parent
            if frame in frames:
                raise ValueError(f"frames {listed(list(frames))} are a loop: fix the parent of one of them")
            frames[frame] = None
        return list(frames)

    def _product(self, frames: Sequence[str]) -> Any:
        """The pose of the first of a frame and its ancestors in the last one's parent."""
        pin = pinocchio()
        pose = pin.SE3.Identity()
        for frame in frames:
            numbers = np.array(self._edges[frame].numbers)
            numbers[3:] /= np.linalg.norm(numbers[3:])
            pose = pin.XYZQUATToSE3(numbers) * pose
        return pose


class HandPoses:
    """The poses of hands whose state is by tf, by their streams. capacity, span_s: see JointHistory."""

    def __init__(self, hands: Mapping[str, Tf], capacity: int, span_s: float) -> None:
        self._hands, self._transforms = hands, Transforms()
        self._histories = {stream: JointHistory(POSE, capacity, span_s) for stream in hands}
        self.clear()

    def clear(self) -> None:
        """Forget all that has a stamp."""
        self._transforms.clear()
        self._problems = dict.fromkeys(self._hands, "")
        self._oldest: dict[str, tuple[int, str]] = {}
        for history in self._histories.values():
            history.clear()

    def take(self, transforms: Iterable[Transform], static: bool, now_ns: int) -> dict[str, int]:
        """Take the transforms of a message. Returns the stamps of the new poses."""
        for transform in transforms:
            self._transforms.add(transform, static, now_ns)
        return {stream: self._oldest[stream][0] for stream in self._hands if self._move(stream, now_ns)}

    def _move(self, stream: str, now_ns: int) -> bool:
        hand, history = self._hands[stream], self._histories[stream]
        try:
            pose, stamp_ns, frame = self._transforms.pose(hand, now_ns)
            self._oldest[stream], self._problems[stream] = (stamp_ns, frame), ""
            if history.counted[3:] @ pose[3:] < 0.0:
                pose[3:] *= -1.0  # the same rotation, on the short way from the last
            return history.add(POSE, pose, stamp_ns, now_ns)
        except ValueError as problem:
            self._problems[stream] = str(problem)
            return False

    def newest_ns(self) -> dict[str, int]:
        """The stamp of the newest pose of each hand; those without one are left out."""
        stamps = {stream: history.newest_ns for stream, history in self._histories.items()}
        return {stream: stamp_ns for stream, stamp_ns in stamps.items() if stamp_ns is not None}

    def problem(self, stream: str, now_ns: int, image_ns: int | None = None) -> str:
        """One sentence about why a hand's pose cannot be used; empty if it can, and before the first
        transform. image_ns: when it must be known."""
        hand, problem = self._hands[stream], self._problems[stream]
        if not problem and stream in self._oldest:
            stamp_ns, frame = self._oldest[stream]
            age_s = (now_ns - stamp_ns) * 1e-9
            if not stamp_ns and age_s > hand.max_age_s:
                problem = f"frame {frame} has no stamp: its publisher must give it"
            elif age_s > hand.max_age_s:
                problem = f"frame {frame} is {age_s:.3f} s old, the limit is {hand.max_age_s:g} s"
        if not problem and image_ns is not None:
            gap_s = self._histories[stream].gap_s(image_ns)
            if math.isinf(gap_s):
                problem = f"no transform of frame {hand.tip} has come yet"
            elif gap_s > hand.max_age_s:
                problem = (
                    f"frame {hand.tip} is {gap_s:.3f} s from the image, the limit is {hand.max_age_s:g} s"
                )
        return problem and f"{stream}: {problem}"

    def problems(self, now_ns: int, image_ns: int) -> str:
        """The first problem of any hand; empty if all can be used at an image's stamp."""
        return next(filter(None, (self.problem(stream, now_ns, image_ns) for stream in self._hands)), "")

    def at(self, stamp_ns: int) -> dict[str, np.ndarray]:
        """Each hand's x to qw at a time, float64 [7]; the quaternion is about a unit. Raises ValueError while
        one is missing."""
        return {stream: history.at(stamp_ns) for stream, history in self._histories.items()}
