"""Images show what the policy needs to see, and a machine without OpenGL says what to install."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from driving import drive

from training.expert import Expert
from vla_accel_ros.sim import rendering
from vla_accel_ros.sim.kinematics import MIRROR
from vla_accel_ros.sim.robot import CAMERAS, SimRobot
from vla_accel_ros.sim.world import BLOCKS, PADS


def is_colour(pixels: np.ndarray, name: str) -> np.ndarray:
    """Which RGB pixels [..., 3] are clearly red, green, blue, yellow or white."""
    r, g, b = (pixels[..., i].astype(int) for i in range(3))
    return {
        "red": (r > 2 * g) & (r > 2 * b) & (r > 80),
        "green": (g > 2 * r) & (g > 2 * b) & (g > 60),
        "blue": (b > 1.6 * g) & (b > 1.6 * r) & (b > 80),
        "yellow": (r > 150) & (g > 120) & (b < 90),
        "white": (r > 225) & (g > 225) & (b > 225),
    }[name]


def halved(image: np.ndarray) -> np.ndarray:
    """[2H, 2W, 3] -> [H, W, 3] by averaging, as antialiased resizing does."""
    h, w, _ = image.shape
    return image.reshape(h // 2, 2, w // 2, 2, 3).mean((1, 3))


def test_images_are_rgb_bytes_of_the_asked_size(robot: SimRobot) -> None:
    robot.reset("reach the red block", 0)
    for camera in CAMERAS:
        image = robot.render(camera)
        assert image.shape == (224, 224, 3) and image.dtype == np.uint8 and image.std() > 15
    small = SimRobot(image_size=(60, 80))
    assert small.render("front").shape == (60, 80, 3)
    small.close()


def test_blocks_and_pads_are_where_they_project_to(robot: SimRobot) -> None:
    """In 20 scenes with the arm raised out of the way, at the size the policy sees."""
    for seed in range(20):
        robot.reset("reach the red block", seed, start=(0.0, -0.9, 0.4, 0.4, 0.0, 0.6))
        view, image = robot.view(), halved(robot.render("front"))
        for name in BLOCKS:
            u, v = robot.project(*view.blocks[name][:3])
            around = image[round(v * 112) - 2 : round(v * 112) + 3, round(u * 112) - 2 : round(u * 112) + 3]
            assert is_colour(around, name).mean() > 0.6, (seed, name)
            assert is_colour(image, name).sum() > 25, (seed, name)
        for name in PADS:
            assert is_colour(image, name).sum() > 25, (seed, name)


def test_the_wrist_camera_sees_the_block_between_the_fingers(robot: SimRobot, expert: Expert) -> None:
    for seed, colour in enumerate(BLOCKS):
        robot.reset(f"put the {colour} block on the white pad", seed)
        expert.reset()
        while robot.truth().held is None:
            robot.step(expert.act())
        middle = robot.render("wrist")[60:164, 60:164]
        assert is_colour(middle, colour).mean() > 0.2


def test_the_gripper_shows_against_the_table_in_the_front_image(robot: SimRobot, expert: Expert) -> None:
    for seed in range(10):
        robot.reset("reach the green block", seed)
        expert.reset()
        drive(robot, expert, 1.5)
        tip = robot.view().tip
        u, v = robot.project(tip.x, tip.y, tip.z + 0.03)
        row, column, image = round(v * 112), round(u * 112), halved(robot.render("front"))
        around = image[row - 8 : row + 8, max(0, column - 8) : column + 8]
        assert (around.max(-1) < 70).mean() > 0.1


@pytest.mark.parametrize("camera", CAMERAS)
def test_a_mirrored_scene_gives_the_mirrored_image(robot: SimRobot, camera: str) -> None:
    robot.reset("reach the red block", 3)
    image, view = robot.render(camera), robot.view()
    robot.set_joints([sign * angle for sign, angle in zip(MIRROR, view.joints)])
    for name, (x, y, z, yaw) in view.blocks.items():
        robot.place_block(name, x, -y, -yaw, z)
    robot._set_pads(np.array([(x, -y, 0.0) for x, y in view.pads.values()]))
    difference = np.abs(robot.render(camera)[:, ::-1].astype(int) - image.astype(int))
    assert (difference.max(-1) > 40).mean() < 0.02  # edges fall on other pixels


def test_rendering_changes_no_physics(robot: SimRobot, expert: Expert) -> None:
    runs = []
    for look in (False, True):
        robot.reset("put the red block on the white pad", 6)
        expert.reset()
        for _ in range(50):
            robot.step(expert.act())
            if look:
                robot.render("front")
        runs.append(robot.data.qpos.copy())
    assert (runs[0] == runs[1]).all()


def test_the_first_backend_that_works_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    assert rendering.choose({"egl": lambda: False, "osmesa": lambda: True}) == "osmesa"
    assert os.environ["MUJOCO_GL"] == "osmesa"


def test_the_users_choice_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert rendering.choose({"egl": lambda: True, "osmesa": lambda: True}) == "osmesa"
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert rendering.choose({"egl": lambda: True}) == "glfw"


def test_no_opengl_is_one_sentence_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(rendering.NoRenderer) as caught:
        rendering.choose({"egl": lambda: False, "osmesa": lambda: False})
    assert "apt-get install libosmesa6" in str(caught.value) and "make demo" in str(caught.value)
    assert str(caught.value).count(".") == 1 and "\n" not in str(caught.value)


def test_a_choice_that_does_not_work_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(rendering.NoRenderer, match=r"^MUJOCO_GL=egl"):
        rendering.choose({"egl": lambda: False})


def test_physics_needs_no_opengl() -> None:
    """In a process of its own, with every OpenGL library out of reach."""
    program = """
import ctypes
real = ctypes.CDLL
def without_gl(name, *a, **k):
    if name and any(part in str(name) for part in ("GL", "OSMesa")):
        raise OSError(name)
    return real(name, *a, **k)
ctypes.CDLL = without_gl
from vla_accel_ros.sim.robot import SimRobot
robot = SimRobot()
robot.step(robot.target)
try:
    robot.render("front")
except RuntimeError as error:
    print(error)
"""
    environment = {name: value for name, value in os.environ.items() if name != "MUJOCO_GL"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == rendering.FIX


def test_torch_may_look_for_triton_after_a_picture_was_drawn() -> None:
    """Both bring an LLVM, and the process used to end by a segmentation fault."""
    code = (
        "import torch\n"
        "from vla_accel_ros.sim.robot import SimRobot\n"
        "SimRobot((16, 16)).render('front')\n"
        "import torch._dynamo"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
