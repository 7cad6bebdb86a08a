"""Contracts without a mistake, and how one is loaded."""

from __future__ import annotations

from pathlib import Path

from vla_accel_ros.contract.contract import Contract

GOOD = """\
robot: two_joints
cameras:
  top: {topic: camera/top/image_raw, image: base_0_rgb, rate_hz: 30, max_age_s: 0.2}
  side: {topic: camera/side/image_raw, image: left_wrist_0_rgb, rate_hz: 15, max_age_s: 0.3}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.1}
joints:
  - {name: a, lower: -1, upper: 2.0, velocity: 1.5, acceleration: 9,
     action: delta, unit: deg, sign: -1, offset: 90}
  - {name: b, lower: 0.0, upper: 0.08, velocity: 0.2, acceleration: 2, action: absolute, unit: m}
controllers:
  - {topic: arm/joint_trajectory, joints: [a]}
  - {topic: hand/joint_trajectory, joints: [b]}
chunk: {step_dt_s: 0.05, max_age_s: 0.6}
"""

URDF = """\
<robot name="two">
  <joint name="a" type="revolute"><limit lower="-2" upper="2" velocity="3" effort="9"/></joint>
  <joint name="b" type="prismatic"><limit lower="0" upper="0.08" velocity="0.2" effort="1"/></joint>
  <joint name="wheel" type="continuous"><limit velocity="1" effort="1"/></joint>
  <joint name="other" type="prismatic"><limit upper="0.08" velocity="0.2"/><mimic joint="b"/></joint>
  <joint name="bare" type="revolute"/>
</robot>
"""

FROM_URDF = """\
robot: two_joints
urdf: two.urdf
acceleration: 5
cameras:
  top: {topic: camera/top/image_raw, image: base_0_rgb, rate_hz: 30, max_age_s: 0.2}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.1}
joints:
  - {name: a, action: delta, upper: 1.5, velocity: 1}
  - {name: b, action: absolute, acceleration: 2}
controllers:
  - {topic: arm/joint_trajectory, joints: [a, b]}
chunk: {step_dt_s: 0.05, max_age_s: 0.6}
"""

SERVO = """\
robot: hand
actions: twist
twist: {per: step, linear: 0.25, angular: 1.0}
cameras:
  top: {topic: camera/top/compressed, image: primary, rate_hz: 30, max_age_s: 0.2,
        transport: compressed, info: camera/top/camera_info}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.1}
joints:
  - {name: a, lower: -1, upper: 2.0, velocity: 1.5, acceleration: 9}
  - {name: b, lower: 0.0, upper: 0.8, velocity: 0.2, acceleration: 2,
     map: {robot: [0.0, 0.8], policy: [1.0, 0.0]}}
controllers:
  - {kind: servo_twist, topic: servo_node/delta_twist_cmds, joints: [a], rate_hz: 50, frame: base_link}
  - {kind: forward_command, topic: hand/commands, joints: [b], rate_hz: 100}
home: {b: 0.1}
chunk: {step_dt_s: 0.2, max_age_s: 0.6}
"""


def load(tmp_path: Path, text: str) -> Contract:
    path = tmp_path / "robot.yaml"
    path.write_text(text)
    return Contract.load(path)


def load_with_urdf(folder: Path, text: str) -> Contract:
    (folder / "two.urdf").write_text(URDF)
    return load(folder, text)
