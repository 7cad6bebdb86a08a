"""All inputs of one robot on their way to an observation.

An image goes from the serialized message straight into a slot of the frame pool: its header is read in place,
and the only copy is the colour conversion. Of a frame in a shared-memory ring only the handle arrives here;
its pixels are uploaded from where the camera's process wrote them, or copied once if there is no GPU. Each
stream has a monitor that tells a starved camera from a silent one. Subscriptions write here from the
executor's thread, and vision reads from its own; one short lock protects the joint history.

An observation is the newest frames of all cameras that belong together, with the joints interpolated at the
oldest frame's stamp. Waiting for exactly matching stamps would wait for the slowest stream, and pairing the
newest of everything would show the policy an arm in two places. `waiting_for` says what is missing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from vla_accel_ros.contract.contract import Camera, Contract
from vla_accel_ros.sensing.arrivals import IMAGE_HINT, make_monitors, wrong_stamp
from vla_accel_ros.sensing.cameras.compressed import decode, write_bgr
from vla_accel_ros.sensing.cameras.frame_sets import NOTHING_NEW, FrameSets, again
from vla_accel_ros.sensing.cameras.frames import Frame, FramePool, Lease, NotReady, Sources
from vla_accel_ros.sensing.cameras.history import History
from vla_accel_ros.sensing.cameras.image import check, compressed_view, image_view, write_rgb
from vla_accel_ros.sensing.cameras.ring import Handle
from vla_accel_ros.sensing.cameras.ring_reader import RingReader
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.sensing.transforms import HandPoses, Transform
from vla_accel_ros.timeline import TIMELINE
from vla_accel_ros.types import Observation

NO_INSTRUCTION = "no instruction yet: publish one on the instruction topic"
_SILENT_OF_LIMIT = 0.8
"""Share of a stream's age limit after which its silence is named: before the robot stops for it."""
_SILENT_S = 0.4
"""Silence from the beginning is named after this."""
_STATES, _LONGEST_S = 2048, 2.0
"""Joint states kept, and the delay of an image that they span at any rate."""
_LOOKED_AT = 128
"""Least rows and columns of a picture that is only looked at."""
_REFUSED_NS = 1_000_000_000
"""How long a refusal is reported while later samples are accepted: one of two joint drivers may be wrong."""


class Ingest:
    """The inputs of one robot. One thread writes, one other reads.

    image_hint: what to do if the rate of a camera that is not a ring is too low. copy: of frames in rings;
    page_lock: of all frames; see RingReader. least_images: see History.

    Attributes for diagnostics: `monitors` by stream name, `refused` messages by stream name, `waiting_for`,
    what an observation lacks (empty if there was one), `rings` for the cameras whose frames are in one;
    `history`; `causes`, set by the node: why a stream may be silent, by stream name.
    `sets` tells a loop when to take an observation.
    """

    def __init__(
        self,
        contract: Contract,
        image_hint: str = IMAGE_HINT,
        copy: bool | None = None,
        page_lock: bool = True,
        least_images: int = 0,
    ) -> None:
        self._contract, self._image_hint, cameras = contract, image_hint, contract.cameras
        self._lock = threading.Lock()
        in_rings = [camera.name for camera in cameras if camera.transport == "ring"]
        self.history = History(contract, least_images)
        pooled = {c.name for c in cameras}.difference(in_rings) | self.history.past.keys()
        self._pool = FramePool(pooled, page_lock=page_lock, past=self.history.past)
        self.rings = RingReader(dict.fromkeys(in_rings, ""), copy, page_lock)
        self._oldest_s = {camera.name: camera.max_age_s for camera in cameras}
        span_s = min(max(self._oldest_s.values()), _LONGEST_S)
        continuous = [joint.name for joint in contract.joints if joint.continuous]
        self._joints = JointHistory([joint.name for joint in contract.observed], _STATES, span_s, continuous)
        self._poses = HandPoses(contract.tf, _STATES, span_s)
        self._frames = Sources({c.name: self._pool if c.name in pooled else self.rings for c in cameras})
        self._lease: Lease | None = None  # of the last observation
        self.sets = FrameSets({camera.name: camera.rate_hz for camera in contract.cameras})
        self._most_pixels = {camera.name: camera.max_pixels for camera in contract.cameras}
        self.instruction, self._no_instruction = "", NO_INSTRUCTION
        self.causes: dict[str, str] = {}
        self._max_age_s = min(self._oldest_s.values())
        self._observed_ns = 0
        self.clear()

    def clear(self) -> None:
        """Forget every stamp: at activation and after a clock jump; the instruction stays."""
        with self._lock:
            self._pool.clear()
            self.rings.clear()
            self._joints.clear()
            self._poses.clear()
            self._observed_stamps: tuple[int, ...] | None = None
            self.sets.clear()
            self.refused: Counter[str] = Counter()
            self._refusals: dict[str, tuple[int, str]] = {}
            self._stamps_ns: dict[str, int] = {}
            self.waiting_for = ""
            self.monitors = make_monitors(self._contract, self._image_hint)

    def instruct(self, text: str, missing: str) -> None:
        """Set the instruction, and the sentence to report if it is empty."""
        self.instruction, self._no_instruction = text, missing

    def image(self, camera: str, message: bytes, now_ns: int) -> None:
        """Take a serialized sensor_msgs/Image. Raises ValueError, one sentence, if it is unusable."""
        with self._refusing(camera, now_ns):
            view = image_view(message)
            check(view)
            with self._pool.write(camera, view.stamp_ns, view.height, view.width) as slot:
                if slot is not None:
                    write_rgb(view, slot)
        self._came(camera, view.stamp_ns, now_ns)

    def compressed(self, camera: str, message: bytes, now_ns: int) -> None:
        """Take a serialized sensor_msgs/CompressedImage, jpeg or png. Raises ValueError as `image` does."""
        with self._refusing(camera, now_ns):
            view = compressed_view(message)
            picture = decode(view, self._most_pixels[camera])
            with self._pool.write(camera, view.stamp_ns, *picture.shape[:2]) as slot:
                if slot is not None:
                    write_bgr(picture, slot)
        self._came(camera, view.stamp_ns, now_ns)

    def handle(self, camera: str, handle: Handle, now_ns: int) -> None:
        """Take the handle of a frame in a ring. Raises ValueError as `image` does. A frame that was already
        overwritten is counted, not refused."""
        with self._refusing(camera, now_ns):
            if camera in self.history.past:
                self.rings.keep(camera, handle, self._pool)
            else:
                self.rings.hear(camera, handle)
        self._came(camera, handle.stamp_ns, now_ns)

    def mismatch(self, camera: str, height: int, width: int) -> str:
        """A sentence if a CameraInfo of this size is not that of the newest image, else empty."""
        lease = self._frames.newest(camera)
        if lease is None:
            return ""
        with lease:
            size = self._size(lease.frames[camera])
        if size == (height, width):
            return ""
        return (
            f"camera {camera}: images are {size[0]} x {size[1]}, its camera_info is of {height} x {width}: "
            "calibrate the camera at the size it sends"
        )

    def picture(self, camera: str, least: int = _LOOKED_AT) -> np.ndarray | None:
        """A copy of a camera's newest picture, uint8 [H, W, 3], made smaller by leaving out pixels, to no
        less than `least` rows and columns; None if there is none."""
        lease = self._frames.newest(camera)
        if lease is None:
            return None
        with lease:
            pixels = self._pixels(lease.frames[camera])
            if pixels is None:
                return None
            rows, columns = (max(size // least, 1) for size in pixels.shape[:2])
            copied = pixels[::rows, ::columns].copy()
            return copied if lease.intact() else None

    def _pixels(self, frame: Frame) -> np.ndarray | None:
        """uint8 [H, W, 3]; None if it cannot be decoded."""
        return frame.image

    def _size(self, frame: Frame) -> tuple[int, ...]:
        """Height and width."""
        return frame.image.shape[:2]

    def lost(self, camera: str) -> int:
        """Number of a camera's frames that came but could not be used: overwritten or damaged in the ring, or
        without a free slot."""
        return (self.rings if camera in self.rings.cameras else self._pool).dropped(camera)

    def joints(self, names: Sequence[str], positions: Sequence[float], stamp_ns: int, now_ns: int) -> None:
        """Take a JointState, or a base's velocities, in ROS units. Raises ValueError, one sentence, if it is
        unusable."""
        try:
            with self._lock:
                self._joints.add(names, positions, stamp_ns, now_ns)
        except ValueError as refusal:
            self._refuse("joint_states", refusal, now_ns)
            raise
        self._seen("joint_states", stamp_ns, now_ns)

    def transforms(self, transforms: Iterable[Transform], static: bool, now_ns: int) -> None:
        """Take the transforms of a TFMessage; what is wrong with them is a `problem` of the hands."""
        with self._lock:
            stamps_ns = self._poses.take(transforms, static, now_ns)
        for stream, stamp_ns in stamps_ns.items():
            self._seen(stream, stamp_ns, now_ns)

    def stamps_ns(self) -> dict[str, int]:
        """The newest usable sample of each stream, by `camera/<name>`, `tf/<hand>` and `joint_states`;
        streams without one are left out. For joint_states it is the time up to which every joint is known."""
        stamps = {f"camera/{c.name}": self._stamps_ns.get(c.name) for c in self._contract.cameras}
        stamps |= {**self._poses.newest_ns(), "joint_states": self._joints.newest_ns}
        return {stream: stamp_ns for stream, stamp_ns in stamps.items() if stamp_ns is not None}

    def problem(self, name: str, now_ns: int) -> str:
        """One sentence about what is wrong with a stream: why its newest message was refused, which joint is
        missing, or that its rate is too low; empty if nothing is. name: as in `monitors`."""
        if name in self._refusals:
            return self._refusals[name][1]
        monitor, joints, most_s = self.monitors[name], "", self._oldest_s.get(name)
        if name in self._contract.tf:
            most_s, joints = self._contract.tf[name].max_age_s, self._poses.problem(name, now_ns)
        elif most_s is None:
            most_s = self._contract.joint_states.max_age_s
            joints = self._joints.problem(now_ns, most_s)
        limit_s = _SILENT_OF_LIMIT * most_s if name in self._stamps_ns else min(_SILENT_S, most_s)
        if (silent_s := monitor.silent_s(now_ns)) > limit_s:
            tf = joints if name in self._contract.tf else ""
            return self.causes.get(name) or tf or monitor.silence(round(silent_s, 1))
        return joints or self._wrong_stamp(name, now_ns) or monitor.warning(now_ns) or ""

    def observe(self, now_ns: int, words: str | None = None) -> Observation | None:
        """The newest observation; None if there is no new one (`waiting_for` says why).

        The images are views of leased slots, valid until the next observation or `observed`, and as long as
        the observation is `intact`. The state is the joints at the oldest image's stamp, float32 [D] in the
        policy's units. words: replaces the instruction.
        """
        with self._lock:
            observation = self._newest(now_ns, self.instruction if words is None else words)
        if isinstance(observation, NotReady):
            silent_s = (now_ns - self._observed_ns) * 1e-9
            if observation is not NOTHING_NEW or silent_s > self._max_age_s:
                self.waiting_for = observation.reason
            return None
        self.waiting_for, self._observed_ns = "", observation.stamp_ns
        return observation

    def observed(self) -> None:
        """The last observation's images are no longer needed; their slots go back to the cameras."""
        with self._lock:
            self._release()

    def newest_state(self) -> tuple[np.ndarray, int] | None:
        """The newest time at which every joint and hand by tf is known, with the state then, float32 [S]
        in the policy's units; None while one is missing."""
        with self._lock:
            stamp_ns, poses_ns = self._joints.newest_ns, self._poses.newest_ns()
            if stamp_ns is None or len(poses_ns) < len(self._contract.tf):
                return None
            stamp_ns = min([stamp_ns, *poses_ns.values()])
            return self._state(stamp_ns), stamp_ns

    def close(self) -> None:
        """Release the rings; an observation still in use keeps its images."""
        with self._lock:
            self._release()
            self.rings.close()

    def _newest(self, now_ns: int, words: str) -> Observation | NotReady:
        if not words.strip():
            return NotReady(self._no_instruction)
        cameras = self._contract.cameras
        wrong_stamps = filter(None, (self._wrong_stamp(camera.name, now_ns) for camera in cameras))
        if wrong_stamp := next(wrong_stamps, ""):
            return NotReady(wrong_stamp)
        lease = self._frames.newest_set([camera.name for camera in cameras], self._contract.max_skew_s)
        if isinstance(lease, NotReady):
            return lease
        stamps = tuple(lease.frames[camera.name].stamp_ns for camera in cameras)
        problem = again(stamps, self._observed_stamps) or self._problem(stamps, now_ns, lease.frames)
        if problem is not None:
            lease.release()
            return problem
        self._release()
        self._lease, self._observed_stamps = lease, stamps
        frames = {picture: lease.frames[picture.name] for picture in self.history.pictures(lease.frames)}
        images = {picture.image: self._view(picture, frame.image) for picture, frame in frames.items()}
        stamps_ns = {picture.image: frame.stamp_ns for picture, frame in frames.items()}
        return Observation(images, self._state(min(stamps)), words, min(stamps), lease.intact, stamps_ns)

    def _state(self, stamp_ns: int) -> np.ndarray:
        """What the policy is given of the joints and hands at a time, float32 [S]."""
        positions, poses = self._joints.at(stamp_ns), self._poses.at(stamp_ns)
        return self._contract.to_policy(positions, poses).astype(np.float32)

    def _view(self, camera: Camera, picture: np.ndarray) -> np.ndarray:
        """What an observation has of a picture."""
        return camera.view(picture)

    def _wrong_stamp(self, name: str, now_ns: int) -> str:
        """What `wrong_stamp` says of a camera; empty for other streams."""
        if name not in self._oldest_s or name not in self._stamps_ns:
            return ""
        return wrong_stamp(name, self._stamps_ns[name], now_ns, self._oldest_s[name])

    def _release(self) -> None:
        """Give the last observation's slots back."""
        if self._lease is not None:
            self._lease.release()
        self._lease = None

    def _problem(self, stamps: tuple[int, ...], now_ns: int, frames: Container[str]) -> NotReady | None:
        for camera, stamp_ns in zip(self._contract.cameras, stamps):
            age_s = (now_ns - stamp_ns) * 1e-9
            if age_s > camera.max_age_s:
                return NotReady(
                    f"camera {camera.name} is {age_s:.3f} s old, max_age_s allows {camera.max_age_s:g}"
                )
        if self._joints.missing:
            return NotReady(self._joints.absence)
        max_age_s = self._contract.joint_states.max_age_s
        problem = self._joints.wrong_stamp(now_ns, max_age_s) or self._joints.far(min(stamps), max_age_s)
        problem = problem or self._poses.problems(now_ns, min(stamps)) or self.history.problem(frames)
        return NotReady(problem) if problem else None

    def _came(self, camera: str, stamp_ns: int, now_ns: int) -> None:
        self._seen(camera, stamp_ns, now_ns)
        self.sets.arrived(camera, stamp_ns)
        TIMELINE.instant(f"camera {camera}", "taken", (stamp_ns,), now_ns - stamp_ns)

    def _seen(self, name: str, stamp_ns: int, now_ns: int) -> None:
        self.monitors[name].seen(stamp_ns, now_ns)
        self._stamps_ns[name] = stamp_ns
        at_ns, _ = self._refusals.get(name, (now_ns, ""))
        if not 0 <= now_ns - at_ns < _REFUSED_NS:
            self._refusals.pop(name, None)

    def _refuse(self, name: str, refusal: ValueError, now_ns: int) -> None:
        self.refused[name] += 1
        self._refusals[name] = (now_ns, str(refusal))

    @contextmanager
    def _refusing(self, camera: str, now_ns: int) -> Iterator[None]:
        """Count a refusal, and add the camera's name to it."""
        try:
            yield
        except ValueError as refusal:
            named = ValueError(f"camera {camera}: {refusal}")
            self._refuse(camera, named, now_ns)
            raise named from refusal
