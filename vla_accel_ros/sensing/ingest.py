"""Everything that comes in on its way to an observation.

An image goes from the serialized message straight into a slot of the frame pool: its header is read in place,
and the one copy is the colour conversion. Each stream has a monitor, so that a camera that starves is told
apart from one that is silent. The subscriptions write here from the executor's thread, the vision loop reads
from its own; one short lock keeps the joint history whole.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np

from vla_accel_ros.engine.types import Observation
from vla_accel_ros.sensing.cdr import image_view
from vla_accel_ros.sensing.contract import Contract
from vla_accel_ros.sensing.frames import FramePool
from vla_accel_ros.sensing.image import write_rgb
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.sensing.rates import IMAGE_HINT, StreamMonitor
from vla_accel_ros.sensing.sync import NOTHING_NEW, NotReady, Synchroniser


class Ingest:
    """The inputs of one robot. Writers: one thread; readers: one other.

    Attributes for diagnostics: `monitors` by stream name, `refused` messages by stream name, `waiting_for`
    what an observation lacks (empty when there was one).
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._lock = threading.Lock()
        self.frames = FramePool(camera.name for camera in contract.cameras)
        self._joints = JointHistory(contract.joint_names)
        self._synchroniser = Synchroniser(contract, self.frames, self._joints)
        self.instruction = ""
        self._max_age_s = min(camera.max_age_s for camera in contract.cameras)
        self._observed_ns = 0
        self.clear()

    def clear(self) -> None:
        """Forget every stamp, as at activation and after a clock jump; the instruction stays."""
        with self._lock:
            self.frames.clear()
            self._joints.clear()
            self.refused: Counter[str] = Counter()
            self.waiting_for = ""
            cameras = self._contract.cameras
            self.monitors = {
                c.name: StreamMonitor(c.rate_hz, f"camera {c.name}", IMAGE_HINT) for c in cameras
            }
            self.monitors["joint_states"] = StreamMonitor(self._contract.joint_states.rate_hz, "joint_states")

    def image(self, camera: str, message: bytes, now_ns: int) -> None:
        """A serialized sensor_msgs/Image. Raises ValueError, one sentence, for one that cannot be used."""
        try:
            view = image_view(message)
            with self.frames.write(camera, view.stamp_ns, view.height, view.width) as slot:
                if slot is not None:
                    write_rgb(view, slot)
        except ValueError as refusal:
            self.refused[camera] += 1
            raise ValueError(f"camera {camera}: {refusal}") from refusal
        self.monitors[camera].seen(view.stamp_ns, now_ns)

    def joints(self, names: Sequence[str], positions: Sequence[float], stamp_ns: int, now_ns: int) -> None:
        """A JointState, in ROS units. Raises ValueError, one sentence, for one that cannot be used."""
        try:
            with self._lock:
                self._joints.add(names, positions, stamp_ns)
        except ValueError:
            self.refused["joint_states"] += 1
            raise
        self.monitors["joint_states"].seen(stamp_ns, now_ns)

    def observe(self, now_ns: int) -> Observation | None:
        """The newest observation; None when there is none that is new, and `waiting_for` says why."""
        with self._lock:
            observation = self._synchroniser.observe(self.instruction, now_ns)
        if isinstance(observation, NotReady):
            silent_s = (now_ns - self._observed_ns) * 1e-9
            if observation is not NOTHING_NEW or silent_s > self._max_age_s:
                self.waiting_for = observation.reason
            return None
        self.waiting_for, self._observed_ns = "", observation.stamp_ns
        return observation

    def observed(self) -> None:
        """The last observation's images are needed no longer; their slots go back to the cameras."""
        with self._lock:
            self._synchroniser.release()

    def feel(self) -> tuple[np.ndarray, int] | None:
        """The newest joints as float32 [D] in the policy's units and their stamp; None while one is
        missing."""
        with self._lock:
            stamp_ns = self._joints.newest_ns
            if stamp_ns is None:
                return None
            return self._contract.to_policy(self._joints.newest()).astype(np.float32), stamp_ns
