"""The earlier frames of a camera that a policy sees as further images.

An earlier frame is the one whose stamp is nearest to the newest frame's less its age, and less than half a
period off. An observation has all earlier frames of all cameras or none of them: after a start, a gap, a
change of size or a clock that was set back it has the newest only, and the policy decides what that means. A
ring holds few frames and waits for nobody, so its frames are copied into the pool, whose slots suffice for
the oldest age.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:  # a contract imports the arm's kinematics, which a camera's process does without
    from vla_accel_ros.contract.contract import Camera, Contract

_NEAR = 0.49
"""Share of a period by which a frame may be off: then none is nearest to two times."""


class Stamped(Protocol):
    """Anything with a capture time."""

    @property
    def stamp_ns(self) -> int: ...


S = TypeVar("S", bound=Stamped)


def nearest_of(frames: Sequence[S], stamp_ns: int) -> S:
    """The frame that was taken nearest to that time."""
    return min(frames, key=lambda frame: abs(frame.stamp_ns - stamp_ns))


@dataclass(frozen=True)
class Past:
    """The earlier frames that go with a camera's. ages_ns: by image, how long before. near_ns: it was taken
    less than this from then. kept: slots that they need."""

    ages_ns: Mapping[str, int]
    near_ns: int
    kept: int

    @classmethod
    def of(cls, camera: Camera) -> Past:
        """A camera's."""
        ages_ns = {image: round(age_s * 1e9) for image, age_s in camera.history}
        return cls(ages_ns, int(_NEAR * 1e9 / camera.rate_hz), camera.kept)

    def of_frames(self, frames: Sequence[S], stamp_ns: int) -> dict[str, S]:
        """Those of the frame of that time, by image; none if one is absent. frames: at least one."""
        earlier: dict[str, S] = {}
        for image, age_ns in self.ages_ns.items():
            then_ns = stamp_ns - age_ns
            earlier[image] = nearest_of(frames, then_ns)
            if abs(earlier[image].stamp_ns - then_ns) >= self.near_ns:
                return {}
        return earlier


class History:
    """Which pictures an observation has. least_images: the policy's; with fewer, an observation waits.

    Attributes: `past` of each camera that has earlier frames; `incomplete`, number of observations without.
    """

    def __init__(self, contract: Contract, least_images: int) -> None:
        self.past = {camera.name: Past.of(camera) for camera in contract.cameras if camera.history}
        self._pictures, self._cameras = contract.pictures, contract.cameras
        self._least_images, self.incomplete = least_images, 0

    def pictures(self, names: Container[str]) -> tuple[Camera, ...]:
        """All pictures, or the cameras, and that is counted, if one is absent. names: of the frames."""
        if self._absent(names) is None:
            return self._pictures
        self.incomplete += 1
        return self._cameras

    def problem(self, names: Container[str]) -> str:
        """A sentence if the policy cannot do without an earlier frame that is absent."""
        absent = self._absent(names)
        if absent is None or len(self._cameras) >= self._least_images:
            return ""
        return f"no frame for image {absent.image} on {absent.topic} yet"

    def _absent(self, names: Container[str]) -> Camera | None:
        return next((picture for picture in self._pictures if picture.name not in names), None)
