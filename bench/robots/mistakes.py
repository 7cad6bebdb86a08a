"""The mistakes that are made most in a robot's first hour, and what must tell each of them.

Each is made on the UR5e's stand-in: by its driver, or in the contract that was written for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from robots.drivers import CameraDriver, RobotDriver

CONTRACT, MODEL = "robot.yaml", "model"
MAKE = (
    f"contract make --from-robot --model {MODEL} --files files --map base=base_0_rgb wrist=left_wrist_0_rgb"
)
CHECK = f"contract check {CONTRACT} --model {MODEL}"
DOCTOR = f"doctor --contract {CONTRACT} --model {MODEL} --seconds 1"


@dataclass(frozen=True)
class Mistake:
    """name: in words. command: of vla, where it is told. told: what its output must have, a pattern. driver,
    contract: make it, in the driver or in the contract's text; by_eye: somebody must look at a picture."""

    name: str
    command: str
    told: str
    driver: Callable[[RobotDriver], RobotDriver] = lambda driver: driver
    contract: Callable[[str], str] = lambda text: text
    by_eye: bool = False


def _first_camera(driver: RobotDriver, change: Callable[[CameraDriver], CameraDriver]) -> RobotDriver:
    first, *others = driver.cameras
    return replace(driver, cameras=(change(first), *others))


def _simulated(now_ns: int) -> int:
    """A stamp of a simulator that started minutes ago."""
    return now_ns % (600 * 10**9)


MISTAKES = (
    Mistake(
        "wrong topic",
        DOCTOR,
        r"nobody publishes /cameras/bse/color/image_raw.*(?s:.*)/cameras/base/color/image_raw",
        contract=lambda text: text.replace("/cameras/base/color/image_raw", "/cameras/bse/color/image_raw"),
    ),
    Mistake(
        "wrong name of a joint",
        CHECK,
        r"elbow.*is not a moving joint.*elbow_joint",
        contract=lambda text: text.replace("elbow_joint", "elbow"),
    ),
    Mistake(
        "encoding that is no colour",
        MAKE,
        r"/cameras/base/color/image_raw.*16UC1",
        driver=lambda driver: _first_camera(driver, lambda camera: replace(camera, encoding="16UC1")),
    ),
    Mistake(
        "BGR declared as RGB",
        MAKE,
        r"base\.png.*colours",
        driver=lambda driver: _first_camera(driver, lambda camera: replace(camera, swapped=True)),
        by_eye=True,
    ),
    Mistake(
        "driver sends degrees",
        MAKE,
        r"shoulder_lift_joint.*degrees",
        driver=lambda driver: replace(driver, scale=57.29578),
    ),
    Mistake(
        "absolute for relative actions",
        CHECK,
        r"shoulder_lift_joint.*action: absolute contradicts",
        contract=lambda text: re.sub(r"action: delta", "action: absolute", text),
    ),
    Mistake(
        "another namespace",
        DOCTOR,
        r"nobody publishes /joint_states(?s:.*)/cell/joint_states",
        driver=lambda driver: replace(driver, namespace="/cell"),
    ),
    Mistake(
        "use_sim_time of a camera",
        DOCTOR,
        r"camera/base(?s:.*)use_sim_time",
        driver=lambda driver: _first_camera(driver, lambda camera: replace(camera, stamp_ns=_simulated)),
    ),
    Mistake(
        "QoS",
        DOCTOR,
        r"durability(?s:.*)receives nothing",
        driver=lambda driver: replace(driver, latched=True),
    ),
    Mistake(
        "checkpoint of another robot",
        CHECK.replace(f"--model {MODEL}", "--model other"),
        r"14 states.* 7 ",
    ),
)
