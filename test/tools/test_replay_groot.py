"""A recorded run of a GR00T is computed again to the bit, with the statistics of its own embodiment."""

from __future__ import annotations

from pathlib import Path

import pytest
from groot_builders import OTHER, add_embodiment, make_groot_folder
from recorded_run import Run, again

from vla_accel_ros.control.chunking.rtc import RtcSettings

CONTRACT = """\
robot: arm
cameras:
  front: {topic: camera/front/image_raw, image: front, rate_hz: 30, max_age_s: 0.2}
max_skew_s: 0.05
joint_states: {topic: joint_states, rate_hz: 100, max_age_s: 0.1}
acceleration: 10
joints:
  - {name: a, lower: -1, upper: 1, velocity: 2, action: absolute}
  - {name: b, lower: 0, upper: 4, velocity: 2, action: absolute}
  - {name: c, lower: 4, upper: 6, velocity: 2, action: absolute}
controllers:
  - {topic: arm/joint_trajectory, joints: [a, b, c]}
chunk: {step_dt_s: 0.1, max_age_s: 0.6}
"""
FRAMES = 4


@pytest.mark.parametrize("rtc", [None, RtcSettings()], ids=["free", "guided"])
def test_replay_computes_the_chunks_of_an_embodiment_again(tmp_path: Path, rtc: RtcSettings | None) -> None:
    add_embodiment(make_groot_folder(tmp_path / "model"))
    (tmp_path / "robot.yaml").write_text(CONTRACT)
    run = Run(tmp_path, rtc=rtc, contract=tmp_path / "robot.yaml", statistics=OTHER, steps=4)
    result, moments = again(run.frames(FRAMES).tell().end())
    assert result.equal, result.different_chunks
    assert (result.chunks, result.frames) == (FRAMES, FRAMES)
    assert not result.notes and not moments.counts["incomplete"]
