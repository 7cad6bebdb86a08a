"""A recorded run of a mimic-video that sees earlier frames, which is computed again to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from hand_arms import text, ur5e_urdf
from recorded_run import START_NS, Run, again

from vla_accel_ros.sensing.cameras.image import image_message
from vla_accel_ros.sensing.ingest import Ingest
from vla_accel_ros.types import Observation

FOLDER = Path(__file__).parents[1] / "data" / "oracles" / "mimic_video" / "checkpoint"
SAID = "image_size=32x48 xattn_layer_idx=2 text_tokens=24"
HISTORY = "{workspace_rgb_4: 0.8, workspace_rgb_3: 0.6, workspace_rgb_2: 0.4, workspace_rgb_1: 0.2}"
FRAMES = 12
JOINTS = [0.3, -1.2, 1.8, -2.0, -1.5, 0.4, 0.02]


class Driven(Run):
    """Its camera sends 10 frames a second, each up to 19 ms early, but those in `lost`; its ingest observes
    all others."""

    def __init__(self, folder: Path, lost: tuple[int, ...] = (), **changes: Any) -> None:
        shutil.copytree(FOLDER, folder / "model")
        (folder / "arm.urdf").write_text(ur5e_urdf())
        written = text("preset: umi, ").replace("base_0_rgb", "workspace_rgb")
        camera = f"rate_hz: 10, max_age_s: 0.5, history: {HISTORY}"
        (folder / "robot.yaml").write_text(written.replace("rate_hz: 30, max_age_s: 0.2", camera))
        super().__init__(folder, contract=folder / "robot.yaml", trained_as=SAID, **changes)
        self.ingest = Ingest(self.contract, page_lock=False)
        self.numbers = iter(number for number in range(1000) if number not in lost)
        self.pictures: dict[int, np.ndarray] = {}
        self.observed: dict[int, dict[str, np.ndarray]] = {}

    def observe(self, stamp_ns: int, state: np.ndarray, words: str) -> Observation:
        number = next(self.numbers)
        stamp_ns = START_NS + (number * 100 - 7 * number % 20) * 1_000_000
        (camera,) = self.contract.cameras
        self.pictures[number] = self._picture(camera.name, camera.topic, stamp_ns)
        message = image_message(stamp_ns, camera.name, self.pictures[number])
        self.ingest.image(camera.name, bytes(message), stamp_ns)
        self.ingest.joints(self.contract.joint_names, JOINTS, stamp_ns, stamp_ns)
        observation = self.ingest.observe(stamp_ns, words)
        assert observation is not None, self.ingest.waiting_for
        self.observed[number] = {image: pixels.copy() for image, pixels in observation.images.items()}
        return observation


def test_replay_earlier_frames_are_those_that_were_observed_to_the_bit(tmp_path: Path) -> None:
    lost = (7,)
    run = Driven(tmp_path, lost)
    path = run.frames(FRAMES).tell().end()
    whole = 0
    for number, images in run.observed.items():
        frames = {f"workspace_rgb_{age}": number - 2 * age for age in (4, 3, 2, 1)}
        if set(frames.values()) <= run.pictures.keys():
            assert list(images) == ["workspace_rgb", *frames]
            for image, frame in frames.items():
                np.testing.assert_array_equal(images[image], run.pictures[frame])
            whole += 1
        else:
            assert list(images) == ["workspace_rgb"]
        np.testing.assert_array_equal(images["workspace_rgb"], run.pictures[number])
    assert whole == 3, "8, 10 and 12; of the others a frame is not there yet, or was lost"
    result, moments = again(path)
    assert result.equal, result.different_chunks
    assert result.chunks == FRAMES and not moments.counts["incomplete"]


def test_replay_actions_are_others_when_a_bag_has_another_earlier_frame(tmp_path: Path) -> None:
    def spoil(camera: str, frame: int, picture: np.ndarray) -> np.ndarray:
        return 255 - picture if frame == 0 else picture

    result, _ = again(Driven(tmp_path, spoil=spoil).frames(9).tell().end())
    first, eighth = result.different_chunks
    assert "request 2," in first.text and "request 10," in eighth.text
