"""A contract without a mistake, and how one is loaded."""

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


def load(tmp_path: Path, text: str) -> Contract:
    path = tmp_path / "robot.yaml"
    path.write_text(text)
    return Contract.load(path)
