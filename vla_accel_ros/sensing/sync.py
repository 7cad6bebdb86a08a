"""One observation from streams that know nothing of each other.

The newest frames of all cameras that belong together, with the joints as they were when the oldest of them
was taken: waiting for exactly matching stamps would wait for the slowest stream, and pairing the newest of
everything would show the policy an arm in two places. What is missing is said in a sentence, for the
diagnostics.
"""

from __future__ import annotations

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing.cameras.frames import FrameSource, Lease, NotReady
from vla_accel_ros.sensing.joints import JointHistory
from vla_accel_ros.types import Observation

__all__ = ["NOTHING_NEW", "NO_INSTRUCTION", "NotReady", "Synchroniser"]

NO_INSTRUCTION = "no instruction yet: publish one on the instruction topic"
NOTHING_NEW = NotReady("no new frame since the last observation")
_JUMP_NS = 500_000_000


class Synchroniser:
    """Makes observations by a contract from `frames` and `joints`, which the subscriptions fill.

    One thread observes. Attribute `no_instruction`: what is said where there is none.
    """

    def __init__(self, contract: Contract, frames: FrameSource, joints: JointHistory | None = None):
        self.contract = contract
        self._names = tuple(camera.name for camera in contract.cameras)
        self.frames = frames
        self.joints = JointHistory(contract.joint_names) if joints is None else joints
        self._lease: Lease | None = None
        self._stamps: tuple[int, ...] | None = None
        self.no_instruction = NO_INSTRUCTION

    def observe(self, instruction: str, now_ns: int) -> Observation | NotReady:
        """The newest observation, or why there is none; NOTHING_NEW when it was had already.

        The images are views of leased slots, good until the next observation or `release`, and as long as
        the observation is `intact`. The state is the joints at the oldest image's stamp, float32 [D] in the
        policy's units.
        """
        if not instruction.strip():
            return NotReady(self.no_instruction)
        lease = self.frames.newest_set(self._names, self.contract.max_skew_s)
        if isinstance(lease, NotReady):
            return lease
        stamps = tuple(lease.frames[name].stamp_ns for name in self._names)
        problem = self._again(stamps) or self._problem(lease, min(stamps), now_ns)
        if problem is not None:
            lease.release()
            return problem
        self.release()
        self._lease, self._stamps = lease, stamps
        state = self.contract.to_policy(self.joints.at(min(stamps))).astype("float32")
        images = {camera.image: lease.frames[camera.name].image for camera in self.contract.cameras}
        stamps_ns = {camera.image: lease.frames[camera.name].stamp_ns for camera in self.contract.cameras}
        return Observation(images, state, instruction, min(stamps), lease.intact, stamps_ns)

    def forget(self) -> None:
        """Forget when the last observation was, as after a clock jump."""
        self._stamps = None

    def release(self) -> None:
        """Give the last observation's slots back."""
        if self._lease is not None:
            self._lease.release()
        self._lease = None

    def _again(self, stamps: tuple[int, ...]) -> NotReady | None:
        """Frames that were observed already, or from before: the middleware may deliver out of order."""
        if stamps == self._stamps:
            return NOTHING_NEW
        before = self._stamps or stamps
        if any(0 < had - has < _JUMP_NS for had, has in zip(before, stamps, strict=True)):
            return NotReady("the newest frames to arrive are older than those of the last observation")
        return None

    def _problem(self, lease: Lease, stamp_ns: int, now_ns: int) -> NotReady | None:
        for camera in self.contract.cameras:
            age_s = (now_ns - lease.frames[camera.name].stamp_ns) * 1e-9
            if age_s > camera.max_age_s:
                return NotReady(
                    f"camera {camera.name} is {age_s:.3f} s old, max_age_s allows {camera.max_age_s:g}"
                )
        if self.joints.missing:
            return NotReady(f"no state of joint {', '.join(self.joints.missing)} yet")
        gap_s = self.joints.gap_s(stamp_ns)
        if gap_s > self.contract.joint_states.max_age_s:
            return NotReady(
                f"joint states are {gap_s:.3f} s from the image, max_age_s allows "
                f"{self.contract.joint_states.max_age_s:g}"
            )
        return None
