"""Everything that comes in on its way to an observation.

An image goes from the serialized message straight into a slot of the frame pool: its header is read in place,
and the one copy is the colour conversion. Of a frame in a shared-memory ring only the handle comes by here;
its pixels are uploaded from where the camera's process wrote them, or copied once where there is no GPU.
Each stream has a monitor, so that a camera that starves is told apart from one that is silent. The
subscriptions write here from the executor's thread, vision reads from its own; one short lock keeps
the joint history whole.

An observation is the newest frames of all cameras that belong together, with the joints as they were when the
oldest of them was taken: waiting for exactly matching stamps would wait for the slowest stream, and pairing
the newest of everything would show the policy an arm in two places. What is missing is said in a sentence.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing.arrivals import IMAGE_HINT, RING_HINT, StreamMonitor
from vla_accel_ros.sensing.cameras.compressed import decode, write_bgr
from vla_accel_ros.sensing.cameras.frame_sets import FrameSets
from vla_accel_ros.sensing.cameras.frames import Frame, FramePool, Lease, NotReady, Sources
from vla_accel_ros.sensing.cameras.image import check, compressed_view, image_view, write_rgb
from vla_accel_ros.sensing.cameras.ring import Handle
from vla_accel_ros.sensing.cameras.ring_reader import RingReader
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.timeline import TIMELINE
from vla_accel_ros.types import Observation

NO_INSTRUCTION = "no instruction yet: publish one on the instruction topic"
_NOTHING_NEW = NotReady("no new frame since the last observation")
_JUMP_NS = 500_000_000
_REFUSED_NS = 1_000_000_000
"""How long a refusal is told beside samples that are taken: one of two drivers of joints may be wrong."""


class Ingest:
    """The inputs of one robot. Writers: one thread; readers: one other.

    image_hint: what to do when too little comes of a camera that is no ring.

    Attributes for diagnostics: `monitors` by stream name, `refused` messages by stream name, `waiting_for`
    what an observation lacks (empty when there was one), `rings` for the cameras whose frames lie in one.
    `sets` is what a loop awaits that takes observations.
    copy: of frames in rings, page_lock: of all; see RingReader.
    """

    def __init__(
        self,
        contract: Contract,
        image_hint: str = IMAGE_HINT,
        copy: bool | None = None,
        page_lock: bool = True,
    ) -> None:
        self._contract, self._image_hint = contract, image_hint
        self._lock = threading.Lock()
        in_rings = [camera.name for camera in contract.cameras if camera.transport == "ring"]
        others = (camera.name for camera in contract.cameras if camera.name not in in_rings)
        self._pool = FramePool(others, page_lock=page_lock)
        self.rings = RingReader(dict.fromkeys(in_rings, ""), copy, page_lock)
        self._joints = JointHistory(contract.joint_names)
        self._frames = Sources(
            {c.name: self.rings if c.name in in_rings else self._pool for c in contract.cameras}
        )
        self._lease: Lease | None = None  # of the last observation
        self.sets = FrameSets({camera.name: camera.rate_hz for camera in contract.cameras})
        self._info: dict[str, tuple[int, int]] = {}
        self._most_pixels = {camera.name: camera.max_pixels for camera in contract.cameras}
        self.instruction, self._no_instruction = "", NO_INSTRUCTION
        self._max_age_s = min(camera.max_age_s for camera in contract.cameras)
        self._observed_ns = 0
        self.clear()

    def clear(self) -> None:
        """Forget every stamp, as at activation and after a clock jump; the instruction stays."""
        with self._lock:
            self._pool.clear()
            self.rings.clear()
            self._joints.clear()
            self._observed_stamps: tuple[int, ...] | None = None
            self.sets.clear()
            self.refused: Counter[str] = Counter()
            self._refusals: dict[str, tuple[int, str]] = {}
            self._stamps_ns: dict[str, int] = {}
            self.waiting_for = ""
            cameras = self._contract.cameras
            hints = {c.name: RING_HINT if c.transport == "ring" else self._image_hint for c in cameras}
            self.monitors = {
                c.name: StreamMonitor(c.rate_hz, f"camera {c.name}", hints[c.name], topic=c.topic)
                for c in cameras
            }
            states = self._contract.joint_states
            self.monitors["joint_states"] = StreamMonitor(states.rate_hz, "joint_states", topic=states.topic)

    def instruct(self, text: str, missing: str) -> None:
        """What to do, and what to say where that is empty."""
        self.instruction, self._no_instruction = text, missing

    def image(self, camera: str, message: bytes, now_ns: int) -> None:
        """A serialized sensor_msgs/Image. Raises ValueError, one sentence, for one that cannot be used."""
        with self._refusing(camera, now_ns):
            view = image_view(message)
            check(view)
            with self._pool.write(camera, view.stamp_ns, view.height, view.width) as slot:
                if slot is not None:
                    write_rgb(view, slot)
        self._came(camera, view.stamp_ns, now_ns)

    def compressed(self, camera: str, message: bytes, now_ns: int) -> None:
        """A serialized sensor_msgs/CompressedImage, jpeg or png. Raises ValueError as image does."""
        with self._refusing(camera, now_ns):
            view = compressed_view(message)
            picture = decode(view, self._most_pixels[camera])
            with self._pool.write(camera, view.stamp_ns, *picture.shape[:2]) as slot:
                if slot is not None:
                    write_bgr(picture, slot)
        self._came(camera, view.stamp_ns, now_ns)

    def handle(self, camera: str, handle: Handle, now_ns: int) -> None:
        """Where a frame of a ring lies. Raises ValueError as image does; a frame overwritten already is
        counted, not refused."""
        with self._refusing(camera, now_ns):
            self.rings.hear(camera, handle)
        self._came(camera, handle.stamp_ns, now_ns)

    def info(self, camera: str, height: int, width: int) -> None:
        """The size of a camera's images by its sensor_msgs/CameraInfo."""
        self._info[camera] = (height, width)

    def mismatch(self, camera: str) -> str:
        """A sentence when CameraInfo and the newest image differ in size, else empty."""
        lease = self._frames.newest(camera) if camera in self._info else None
        if lease is None:
            return ""
        with lease:
            size = self._size(lease.frames[camera])
        if size == self._info[camera]:
            return ""
        return (
            f"camera {camera}: images are {size[0]} x {size[1]}, its camera_info is of "
            f"{self._info[camera][0]} x {self._info[camera][1]}: calibrate the camera at the size it sends"
        )

    def _size(self, frame: Frame) -> tuple[int, ...]:
        """Height and width."""
        return frame.image.shape[:2]

    def lost(self, camera: str) -> int:
        """How many of a camera's frames came but could not be used: overwritten or damaged in the ring, or
        without a free slot."""
        return (self.rings if camera in self.rings.cameras else self._pool).dropped(camera)

    def joints(self, names: Sequence[str], positions: Sequence[float], stamp_ns: int, now_ns: int) -> None:
        """A JointState, in ROS units. Raises ValueError, one sentence, for one that cannot be used."""
        try:
            with self._lock:
                self._joints.add(names, positions, stamp_ns)
        except ValueError as refusal:
            self._refuse("joint_states", refusal, now_ns)
            raise
        self._seen("joint_states", stamp_ns, now_ns)

    def stamps_ns(self) -> dict[str, int]:
        """The newest usable sample of each stream by `camera/<name>` and `joint_states`, without those of
        which none has come. Of joint_states it is the time up to which every joint is known."""
        stamps = {f"camera/{c.name}": self._stamps_ns.get(c.name) for c in self._contract.cameras}
        stamps["joint_states"] = self._joints.newest_ns
        return {stream: stamp_ns for stream, stamp_ns in stamps.items() if stamp_ns is not None}

    def problem(self, name: str, now_ns: int) -> str:
        """What is wrong with a stream, in a sentence: why its newest message was refused, which joint is
        missing, or that it comes too slowly; empty when nothing is. name: as in `monitors`."""
        if name in self._refusals:
            return self._refusals[name][1]
        joints = ""
        if name == "joint_states":
            joints = self._joints.problem(now_ns, self._contract.joint_states.max_age_s)
        silent = not self.monitors[name].rate_hz(now_ns)
        slow = self.monitors[name].warning(now_ns) or ""
        return slow if silent and slow else joints or slow

    def observe(self, now_ns: int, words: str | None = None) -> Observation | None:
        """The newest observation; None when there is none that is new, and `waiting_for` says why.

        The images are views of leased slots, good until the next observation or `observed`, and as long as
        the observation is `intact`. The state is the joints at the oldest image's stamp, float32 [D] in the
        policy's units. words: instead of the instruction.
        """
        with self._lock:
            observation = self._newest(now_ns, self.instruction if words is None else words)
        if isinstance(observation, NotReady):
            silent_s = (now_ns - self._observed_ns) * 1e-9
            if observation is not _NOTHING_NEW or silent_s > self._max_age_s:
                self.waiting_for = observation.reason
            return None
        self.waiting_for, self._observed_ns = "", observation.stamp_ns
        return observation

    def observed(self) -> None:
        """The last observation's images are needed no longer; their slots go back to the cameras."""
        with self._lock:
            self._release()

    def newest_state(self) -> tuple[np.ndarray, int] | None:
        """The newest joints as float32 [D] in the policy's units and their stamp; None while one is
        missing."""
        with self._lock:
            stamp_ns = self._joints.newest_ns
            if stamp_ns is None:
                return None
            return self._contract.to_policy(self._joints.newest()).astype(np.float32), stamp_ns

    def close(self) -> None:
        """Let go of the rings; an observation still in use keeps its images."""
        with self._lock:
            self._release()
            self.rings.close()

    def _newest(self, now_ns: int, words: str) -> Observation | NotReady:
        if not words.strip():
            return NotReady(self._no_instruction)
        cameras = self._contract.cameras
        lease = self._frames.newest_set([camera.name for camera in cameras], self._contract.max_skew_s)
        if isinstance(lease, NotReady):
            return lease
        stamps = tuple(lease.frames[camera.name].stamp_ns for camera in cameras)
        problem = self._again(stamps) or self._problem(stamps, now_ns)
        if problem is not None:
            lease.release()
            return problem
        self._release()
        self._lease, self._observed_stamps = lease, stamps
        state = self._contract.to_policy(self._joints.at(min(stamps))).astype("float32")
        images = {camera.image: lease.frames[camera.name].image for camera in cameras}
        stamps_ns = {camera.image: stamp_ns for camera, stamp_ns in zip(cameras, stamps)}
        return Observation(images, state, words, min(stamps), lease.intact, stamps_ns)

    def _release(self) -> None:
        """Give the last observation's slots back."""
        if self._lease is not None:
            self._lease.release()
        self._lease = None

    def _again(self, stamps: tuple[int, ...]) -> NotReady | None:
        """Frames that were observed already, or from before: the middleware may deliver out of order."""
        if stamps == self._observed_stamps:
            return _NOTHING_NEW
        before = self._observed_stamps or stamps
        if any(0 < had - has < _JUMP_NS for had, has in zip(before, stamps, strict=True)):
            return NotReady("the newest frames to arrive are older than those of the last observation")
        return None

    def _problem(self, stamps: tuple[int, ...], now_ns: int) -> NotReady | None:
        for camera, stamp_ns in zip(self._contract.cameras, stamps):
            age_s = (now_ns - stamp_ns) * 1e-9
            if age_s > camera.max_age_s:
                return NotReady(
                    f"camera {camera.name} is {age_s:.3f} s old, max_age_s allows {camera.max_age_s:g}"
                )
        if self._joints.missing:
            return NotReady(f"no state of joint {', '.join(self._joints.missing)} yet")
        gap_s, most_s = self._joints.gap_s(min(stamps)), self._contract.joint_states.max_age_s
        if gap_s > most_s:
            return NotReady(f"joint states are {gap_s:.3f} s from the image, max_age_s allows {most_s:g}")
        return None

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
        """Count a refusal, and say whose it is."""
        try:
            yield
        except ValueError as refusal:
            told = ValueError(f"camera {camera}: {refusal}")
            self._refuse(camera, told, now_ns)
            raise told from refusal
