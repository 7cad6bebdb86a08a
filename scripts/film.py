"""Make README's film from a recording of `vla demo`: the arm, what its network sees, and its chunks.

    vla demo, beside it the recorder node, in one ROS domain; then
    python scripts/film.py BAG [--begin S] [--seconds S] [--output docs/images/demo.webp]

The arm is drawn anew, in the scene's own front camera, from the recorded joints and the ground truth of the
blocks; everything else is what `vla look BAG` shows. Animated WebP, which GitHub plays.
"""

from __future__ import annotations

import argparse
import base64
import bisect
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.sim.rendering import mujoco, open_renderer
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.world import BLOCKS, PADS
from vla_accel_ros.tools.look.pictures import NetworkPictures
from vla_accel_ros.tools.look.recorded import Recorded

WIDTH, HEIGHT, SCENE, GAP = 960, 540, 540, 12
SIDE = (WIDTH - SCENE - 3 * GAP) // 2
FRAMES_HZ = 10
PAST_S, AHEAD_S = 2.5, 1.3
JOINTS = ("shoulder_pan", "elbow_flex", "gripper")
GROUND, TEXT, DIM = (17, 20, 24), (236, 238, 240), (140, 148, 158)
GOOD, WARN, BAD = (76, 195, 138), (245, 184, 61), (229, 92, 96)
COLOURS = ((96, 165, 250), (76, 195, 138), (232, 121, 249))


@lru_cache(maxsize=16)
def _font(size: int, bold: bool) -> Any:
    """DejaVu, which comes with matplotlib."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


class Scene:
    """Draws the arm and the blocks at a time of the bag."""

    def __init__(self, bag: Bag) -> None:
        self._robot = SimRobot()
        model = self._robot.model
        model.vis.global_.offwidth = model.vis.global_.offheight = SCENE
        self._renderer = open_renderer(model, SCENE, SCENE)
        truths = [(e.log_ns, bag.decode(e)) for e in bag.entries(("vla_accel_msgs/msg/GroundTruth",))]
        self._times, self._truths = [t for t, _ in truths], [truth for _, truth in truths]

    def draw(self, at_ns: int, joints: np.ndarray) -> Image.Image:
        """joints: the six positions."""
        model, data = self._robot.model, self._robot.data
        truth = self._truths[max(0, bisect.bisect_right(self._times, at_ns) - 1)]
        poses = dict(zip(truth.names, truth.poses))
        data.qpos[:7] = (*joints, joints[5])
        for i, name in enumerate(BLOCKS):
            place, turn = poses[f"{name}_block"].position, poses[f"{name}_block"].orientation
            data.qpos[7 + 7 * i : 14 + 7 * i] = (place.x, place.y, place.z, turn.w, turn.x, turn.y, turn.z)
        for name in PADS:
            place = poses[f"{name}_pad"].position
            model.body_pos[model.body(f"pad_{name}").id] = (place.x, place.y, 0.0)
        mujoco.mj_forward(model, data)
        self._renderer.update_scene(data, "front")
        return Image.fromarray(self._renderer.render())


def floats(text: str) -> np.ndarray:
    """What scene.packed made."""
    return np.frombuffer(base64.b64decode(text), "<f4")


def plot(pen: ImageDraw.ImageDraw, box: tuple[int, int, int, int], moment: dict[str, Any]) -> None:
    """Draw some joints: measured, commanded, sent, and the actions of the last chunks."""
    left, top, right, bottom = box
    names = [name for name, _, _ in moment["robot"]["joints"]]

    def x(seconds: float) -> float:
        return left + (seconds + PAST_S) / (PAST_S + AHEAD_S) * (right - left)

    pen.line((x(0), top, x(0), bottom), fill=(42, 48, 56), width=1)
    rows = (bottom - top) / len(JOINTS)
    for row, (name, colour) in enumerate(zip(JOINTS, COLOURS)):
        joint = names.index(name)
        lower, upper = moment["robot"]["joints"][joint][1:]
        base = top + (row + 1) * rows - 6

        def y(value: float, base: float = base, low: float = lower, high: float = upper) -> float:
            return base - (value - low) / (high - low) * (rows - 18)

        pen.text((left, top + row * rows), name.replace("_", " "), font=_font(12, False), fill=colour)
        faint = tuple(c // 2 for c in colour)
        for key, fill, width in (("measured", faint, 4), ("commanded", colour, 1)):
            times = floats(moment[key]["times"])
            if len(times) < 2:
                continue
            values = floats(moment[key]["positions"]).reshape(len(names), -1)[joint]
            points = [(x(t), y(v)) for t, v in zip(times, values) if t >= -PAST_S and np.isfinite(v)]
            pen.line(points, fill=fill, width=width)
        for age, chunk in enumerate(reversed(moment["chunks"])):
            times = floats(chunk["times"])
            values = floats(chunk["actions"]).reshape(len(names), -1)[joint]
            fill = WARN if age == 0 else (110, 88, 40)
            for i in range(min(len(times), chunk["executed"])):
                if -PAST_S <= times[i] <= AHEAD_S and np.isfinite(values[i]):
                    px, py = x(times[i]), y(values[i])
                    ring = (px - 2, py - 2, px + 2, py + 2)
                    pen.ellipse(ring, outline=fill, fill=fill if i < chunk["committed"] else None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bag", type=Path)
    parser.add_argument("--begin", type=float, default=0.0, help="seconds after the bag's first message")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--output", type=Path, default=Path("docs/images/demo.webp"))
    given = parser.parse_args()
    recorded, scene = Recorded(given.bag), Scene(Bag(given.bag))
    network = NetworkPictures(recorded.scene.session)
    frames = []
    for number in range(round(given.seconds * FRAMES_HZ)):
        at_ns = recorded.first_ns + round((given.begin + number / FRAMES_HZ) * 1e9)
        moment = {**recorded.scene.moment(at_ns), "robot": recorded.scene.robot()}
        joints = recorded.scene.joints.at(at_ns)
        canvas = Image.new("RGB", (WIDTH, HEIGHT), GROUND)
        pen = ImageDraw.Draw(canvas)
        if joints is not None:
            canvas.paste(scene.draw(at_ns, joints[1]), (0, 0))
        for i, camera in enumerate(recorded.scene.contract.cameras):
            place = SCENE + GAP + i * (SIDE + GAP), 30
            picture = recorded.image(camera.name, at_ns)
            if picture is not None:
                pixels = Image.fromarray(network.of(camera, picture[1]))
                canvas.paste(pixels.resize((SIDE, SIDE), Image.Resampling.BICUBIC), place)
            pen.text((place[0], 8), f"network: {camera.name}", font=_font(13, False), fill=DIM)
        plot(pen, (SCENE + GAP, 44 + SIDE, WIDTH - GAP, HEIGHT - 26), moment)
        pen.text(
            (SCENE + GAP, HEIGHT - 22), "chunks: ● committed ○ uncommitted", font=_font(12, False), fill=WARN
        )
        pen.rectangle((0, HEIGHT - 58, SCENE, HEIGHT), fill=GROUND)
        pen.text((12, HEIGHT - 54), f"“{moment['instruction']}”", font=_font(18, True), fill=TEXT)
        answer = moment["answer"]
        pen.text(
            (12, HEIGHT - 27),
            f"it says: {answer['text'] if answer else '…'}",
            font=_font(15, False),
            fill=DIM,
        )
        colour = {"running": GOOD, "holding": BAD}.get(moment["state"], WARN)
        width = round(pen.textlength(moment["state"], font=_font(15, True)))
        pen.text((SCENE - 12 - width, HEIGHT - 27), moment["state"], font=_font(15, True), fill=colour)
        frames.append(canvas)
    frames[0].save(
        given.output,
        save_all=True,
        append_images=frames[1:],
        duration=1000 // FRAMES_HZ,
        loop=0,
        quality=55,
        method=4,
        minimize_size=False,
    )
    print(f"{given.output}: {len(frames)} frames, {given.output.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
