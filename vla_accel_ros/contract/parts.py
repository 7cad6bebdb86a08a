"""The parts of a contract: streams, cameras, joints, controllers and times, and the limits of their values.

readers.py reads them from a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vla_accel_ros.control.following.joint_faults import LASTING_S, usual
from vla_accel_ros.control.kinematics.arm import Arm

NAME = r"[A-Za-z_][A-Za-z0-9_]*"
NAME_FORM = "a name of letters, digits and underscores"
SERVO = ("servo_joint", "servo_twist", "servo_pose")
TOPIC = rf"(?!.{{151}}){NAME}(/{NAME})*"
INPUT_TOPIC = rf"/?{TOPIC}"
INPUT_FORM = "a topic name such as /joint_states or camera/front/image_raw, of at most 150 characters"
"""What others publish may be outside of the robot's namespace; what moves it may not."""
LONGEST_AGE_S = 3600.0
FURTHEST = 1e4
"""[rad or m] A limit further from zero cannot be a joint's."""
TWO_TURNS = 4.0 * math.pi
"""[rad] What no joint turns by unless it turns without end."""
MAX_PIXELS = 3840 * 2160
"""A 4K camera's, usually the most that a robot's camera sends."""
UNITS = {"rad": 1.0, "m": 1.0, "deg": 180.0 / math.pi}


@dataclass(frozen=True)
class Stream:
    """A topic that must keep coming. topic: relative or absolute. rate_hz: expected. max_age_s: an older
    sample is too old."""

    topic: str
    rate_hz: float
    max_age_s: float


@dataclass(frozen=True)
class Camera(Stream):
    """A camera stream. name: ours. image: the policy's name for it (`base_0_rgb`, ...).

    transport: the message on `topic`: sensor_msgs/Image (raw), sensor_msgs/CompressedImage (compressed) or
    vla_accel_msgs/FrameHandle (ring). info: topic of the sensor_msgs/CameraInfo, empty for none. max_pixels:
    a compressed picture whose header says more is not decoded. rotation, crop: what of a picture the policy
    gets: turned clockwise by 0, 90, 180 or 270 degrees, then cropped around its centre to this share of each
    side. history: further images of the policy that are earlier frames, each with how much earlier [s].
    """

    name: str
    image: str
    transport: str = "raw"
    info: str = ""
    max_pixels: int = MAX_PIXELS
    rotation: int = 0
    crop: float = 1.0
    history: tuple[tuple[str, float], ...] = ()

    @property
    def kept(self) -> int:
        """How many frames its history needs: those of its time, and those that are in use longer."""
        ages_s = [age_s for _, age_s in self.history]
        return math.ceil(max(ages_s) * self.rate_hz) + 1 + len(ages_s) if ages_s else 0

    def view(self, picture: np.ndarray) -> np.ndarray:
        """What the policy gets of uint8 [H, W, 3]: a view of the same memory, the array itself if all."""
        if self.rotation:
            picture = np.rot90(picture, -self.rotation // 90)
        if self.crop < 1.0:
            rows, columns = (_middle(side, self.crop) for side in picture.shape[:2])
            picture = picture[rows, columns]
        return picture


def _middle(side: int, share: float) -> slice:
    """The middle part of a side."""
    length = max(1, round(side * share))
    return slice((side - length) // 2, (side - length) // 2 + length)


@dataclass(frozen=True)
class Deadman:
    """A button that a person holds while the arm is to follow. topic: of sensor_msgs/Joy. button: its
    index."""

    topic: str
    button: int


@dataclass(frozen=True)
class TeleopHand:
    """The hand that twists move. arm: its chain of joints. axes: of a twist, `base` or `tool`. linear,
    angular: greatest speed [m/s], [rad/s]."""

    arm: Arm
    axes: str
    linear: float
    angular: float


@dataclass(frozen=True)
class Teleop(Stream):
    """What a person commands the arm by.

    type: JointState (positions of a leader arm, rad or m), JointJog (velocities) or TwistStamped (of `hand`,
    None for the others and where twists are the policy's actions). joints: ours -> the name in these
    messages; a joint that is absent stays where it is. deadman: None if only ~/take_over and ~/give_back hand
    the arm over.
    """

    joints: Mapping[str, str] = field(default_factory=dict)
    type: str = "JointState"
    hand: TeleopHand | None = None
    deadman: Deadman | None = None


@dataclass(frozen=True)
class FollowingError:
    """How far a joint may be from its commanded position (rad or m; infinite: it is not watched), and for how
    long a greater distance is tolerated."""

    rad: float
    s: float


@dataclass(frozen=True)
class Joint:
    """One joint. Limits in ROS units (rad or m, s); policy value = scale * position + offset.

    gain: the scale if `map` gives it; None if sign and unit do. following_error: None for the usual one at
    its velocity. continuous: it turns without end, so that its driver may report positions that differ by
    whole turns; lower and upper then bound the position counted on across pi. action: `absolute`, `delta`
    (relative to the observed joint) or `velocity`, of which one unit is per_unit (rad or m, per s).
    action_line: scale and offset of its actions, if they differ from the state's. pair: the state has it
    twice, the second time with the other sign, as two fingers that close on each other.
    """

    name: str
    lower: float
    upper: float
    velocity: float
    acceleration: float
    action: str
    unit: str = "rad"
    sign: int = 1
    offset: float = 0.0
    gain: float | None = None
    following_error: FollowingError | None = None
    continuous: bool = False
    per_unit: float = 1.0
    action_line: tuple[float, float] | None = None
    pair: bool = False

    @property
    def action_units(self) -> tuple[float, float]:
        """Scale and offset of its actions: policy value = scale * (position or velocity) + offset."""
        if self.action == "velocity":
            return self.sign / self.per_unit, 0.0
        return self.action_line or (self.scale, self.offset)

    @property
    def following(self) -> FollowingError:
        """The limits of its following error."""
        if self.following_error is not None:
            return self.following_error
        return FollowingError(float(usual(np.array(self.velocity))), LASTING_S)

    @property
    def scale(self) -> float:
        """Policy units per ROS unit, with the sign."""
        return self.sign * UNITS[self.unit] if self.gain is None else self.gain


@dataclass(frozen=True)
class Controller:
    """A controller of some joints: its command topic, and the joints in its order.

    kind: joint_trajectory (JointTrajectory), forward_command (Float64MultiArray), gripper_command and
    parallel_gripper (actions), servo_joint (JointJog of MoveIt Servo), servo_twist (its TwistStamped), or one
    that another package adds (extensions.py). rate_hz: of the stream of commands, 0.0 for kinds that
    interpolate. action: its FollowJointTrajectory action for home and approach, empty for none; of a gripper
    the one that executes its goals. frame: frame_id of the twist, empty for kinds without one. max_effort: of
    a gripper's goals [N or Nm], 0.0 for the controller's.
    """

    topic: str
    joints: tuple[str, ...]
    kind: str = "joint_trajectory"
    rate_hz: float = 0.0
    action: str = ""
    frame: str = ""
    max_effort: float = 0.0


@dataclass(frozen=True)
class Twist:
    """What the first six numbers of a twist action mean, and how fast the hand may go.

    per: `step` for the displacement (m, rad) in one step_dt_s, or `second` for a velocity (m/s, rad/s).
    linear, angular: greatest speed [m/s], [rad/s].
    """

    per: str
    linear: float
    angular: float


@dataclass(frozen=True)
class Base:
    """A mobile base. axes: what the last numbers of a row are, each with its speed (m/s or rad/s), and as one
    of the state if there is `odometry`, a topic. places: theirs among the six numbers of a twist. controller:
    its kind is the type of its messages. speeds, accelerations: greatest of the way and of the turn.
    timeout_s: without commands for so long it stops by itself.
    """

    axes: tuple[Joint, ...]
    places: tuple[int, ...]
    controller: Controller
    speeds: tuple[float, float]
    accelerations: tuple[float, float]
    timeout_s: float
    odometry: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Of its axes."""
        return tuple(axis.name for axis in self.axes)

    def velocities(self, twist: Any) -> list[float]:
        """Those of its axes in a geometry_msgs/Twist."""
        paths = (name.split(".")[1:] for name in self.names)
        return [getattr(getattr(twist, half), axis) for half, axis in paths]


@dataclass(frozen=True)
class ChunkTiming:
    """step_dt_s: seconds between two actions. max_age_s: a chunk whose observation is older is too old."""

    step_dt_s: float
    max_age_s: float
