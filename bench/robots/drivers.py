"""What the drivers of some robots publish and take, and mistakes that their users make.

Names are those of ur_robot_driver (ur_control.launch.py, ur_controllers.yaml), franka_ros2
(franka_fr3_moveit_config), realsense2_camera, usb_cam, and of the contracts in config/contracts for the
others. Joint states and controllers' commands are reliable, as ros2_control has them; descriptions are
latched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.running.environment import share_path

JTC = "joint_trajectory_controller/JointTrajectoryController"
FORWARD = "forward_command_controller/ForwardCommandController"
COLOURS = (200, 60, 30)
"""Of the pictures: red, green, blue; a camera with red and blue exchanged shows a blue picture."""


@dataclass(frozen=True)
class CameraDriver:
    """topic: of its pictures, info: of its CameraInfo. stamp_ns: from the present time."""

    topic: str
    info: str = ""
    encoding: str = "rgb8"
    rate_hz: float = 30.0
    size: tuple[int, int] = (240, 424)
    swapped: bool = False
    stamp_ns: Callable[[int], int] = lambda now_ns: now_ns


@dataclass(frozen=True)
class ControllerDriver:
    """name: of its node. active: whether it claims its joints."""

    name: str
    type: str
    joints: tuple[str, ...]
    active: bool = True
    interface: str = "position"


@dataclass(frozen=True)
class RobotDriver:
    """joints: in the order of the joint states. scale: of measured positions (degrees: a mistake).
    namespace: of everything. latched: whether controllers ask for latched commands."""

    contract: Contract
    joints: tuple[str, ...]
    rate_hz: float
    cameras: tuple[CameraDriver, ...]
    controllers: tuple[ControllerDriver, ...]
    joint_topic: str = "joint_states"
    scale: float = 1.0
    namespace: str = ""
    latched: bool = False
    managed: bool = True
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def calm(self) -> RobotDriver:
        """It, slower and with smaller pictures: as much as a busy machine delivers."""
        cameras = tuple(replace(camera, size=(48, 64), rate_hz=10.0) for camera in self.cameras)
        return replace(self, rate_hz=50.0, cameras=cameras)

    @property
    def description(self) -> str:
        """Its URDF, with the limits of the contract."""
        joints = ""
        for joint in self.contract.joints:
            name, kind = (
                self.names.get(joint.name, joint.name),
                "prismatic" if joint.upper < 0.1 else "revolute",
            )
            limits = f'lower="{joint.lower}" upper="{joint.upper}" velocity="{joint.velocity}" effort="10"'
            joints += f'<joint name="{name}" type="{kind}"><limit {limits}/></joint>\n'
        return f'<robot name="{self.contract.robot}">\n{joints}</robot>\n'


def contract_of(name: str) -> Contract:
    """A contract of config/contracts."""
    return Contract.load(share_path(f"config/contracts/{name}.yaml"))


def _of_contract(name: str, rate_hz: float, cameras: Sequence[CameraDriver] = ()) -> RobotDriver:
    """As the contract has it: controllers are JTCs, and cameras publish rgb8 at 424 x 240 unless given."""
    contract = contract_of(name)
    controllers = tuple(
        ControllerDriver(
            c.topic.rpartition("/")[0], FORWARD if c.kind == "forward_command" else JTC, c.joints
        )
        for c in contract.controllers
    )
    usual = [
        CameraDriver(c.topic, c.info, rate_hz=c.rate_hz) for c in contract.cameras if c.transport == "raw"
    ]
    return RobotDriver(contract, contract.joint_names, rate_hz, tuple(cameras or usual), controllers)


def ur5e() -> RobotDriver:
    """ur_robot_driver on an e-Series: joint states in its order, one active controller of several."""
    robot = _of_contract("ur5e_robotiq", 500.0)
    pan, *arm_joints, gripper = robot.joints
    arm = robot.controllers[0].joints
    scaled = replace(robot.controllers[0], type="ur_controllers/ScaledJointTrajectoryController")
    idle = (
        ControllerDriver("joint_trajectory_controller", JTC, arm, active=False),
        ControllerDriver(
            "forward_position_controller",
            "position_controllers/JointGroupPositionController",
            arm,
            active=False,
        ),
        ControllerDriver(
            "forward_velocity_controller",
            "velocity_controllers/JointGroupVelocityController",
            arm,
            active=False,
            interface="velocity",
        ),
    )
    depth = CameraDriver("cameras/base/depth/image_rect_raw", encoding="16UC1")
    return replace(
        robot,
        joints=(*arm_joints, pan, gripper),
        cameras=(*robot.cameras, depth),
        controllers=(scaled, *robot.controllers[1:], *idle),
    )


def franka() -> RobotDriver:
    """franka_ros2 with a joint_state_publisher raised to 100 Hz."""
    return _of_contract("franka", 100.0)


def so101() -> RobotDriver:
    """One SO-101 at its servos' 100 Hz, two USB cameras of usb_cam."""
    cameras = [CameraDriver(f"{name}/image_raw", size=(480, 640)) for name in ("top", "wrist")]
    return _of_contract("so101", 100.0, cameras)


def so101_bimanual() -> RobotDriver:
    """Two SO-101 in one controller manager; cameras are this package's own node."""
    return _of_contract("so101_bimanual", 100.0)


def aloha() -> RobotDriver:
    """Two ViperX in one controller manager; RealSense D405 cameras."""
    return _of_contract("aloha", 100.0)


ROBOTS = {driver.__name__: driver for driver in (ur5e, franka, so101, so101_bimanual, aloha)}
