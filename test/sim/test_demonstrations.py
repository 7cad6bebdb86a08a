"""Demonstrations: complete samples with the expert's labels, the same from the same seeds everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from training.demonstrations import (
    HORIZON,
    Sample,
    draw_task,
    push_block,
    record_episode,
    start_somewhere,
)
from training.expert import Expert
from vla_accel_ros.sim import kinematics
from vla_accel_ros.sim.robot import SimRobot
from vla_accel_ros.sim.tasks import FAMILIES, tasks


def record(robot: SimRobot, expert: Expert, seed: int) -> list[Sample]:
    task = draw_task(np.random.default_rng((seed, 0x7A5C)))
    return record_episode(task, seed, robot=robot, expert=expert)


def equal(a: Sample, b: Sample) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in a.__dataclass_fields__)


@pytest.fixture(scope="module")
def samples(robot: SimRobot, expert: Expert) -> list[Sample]:
    return [sample for seed in range(24) for sample in record(robot, expert, seed)]


def test_a_sample_is_complete(samples: list[Sample]) -> None:
    words = {task.instruction for task in tasks()}
    for sample in samples:
        assert sample.front.shape == sample.wrist.shape == (224, 224, 3) and sample.front.dtype == np.uint8
        assert sample.state.shape == (6,) and sample.state.dtype == np.float32
        assert sample.chunk.shape == (HORIZON, 6) and sample.chunk.dtype == np.float32
        assert np.isfinite(sample.chunk).all()
        assert (sample.chunk >= np.array(kinematics.LOWER, np.float32)).all()
        assert (sample.chunk <= np.array(kinematics.UPPER, np.float32)).all()
        assert sample.instruction in words
        assert sample.target_uv.shape == sample.goal_uv.shape == (2,)
        assert sample.front.flags.owndata or sample.front.base is not None


def test_labels_continue_from_the_state(samples: list[Sample]) -> None:
    """No sample teaches a jump, neither from the arm to the first target nor from one to the next."""
    first = np.abs(np.array([sample.chunk[0, :5] - sample.state[:5] for sample in samples]))
    assert np.median(first) < 0.03 and first.max() < 0.35  # far only where noise threw the arm about
    steps = np.abs(np.diff([sample.chunk[:, :5] for sample in samples], axis=1))
    assert steps.max() <= 2.7 / 30 + 1e-5


def test_every_family_phase_and_kind_of_answer_occurs(samples: list[Sample]) -> None:
    assert {sample.family for sample in samples} == set(FAMILIES)
    assert {sample.phase for sample in samples} == {"approach", "near", "carry", "done"}
    assert {sample.answer.split()[0] for sample in samples} == {"moving", "holding", "following", "done"}


def test_scenes_dominate_over_frames(samples: list[Sample]) -> None:
    assert len(samples) / 24 < 20


def test_a_seed_gives_the_same_samples(robot: SimRobot, expert: Expert, samples: list[Sample]) -> None:
    again = record(robot, expert, 5)
    before = [sample for sample in samples if sample.seed == 5]
    assert len(again) == len(before) > 0
    assert all(equal(a, b) for a, b in zip(again, before))


def test_whoever_drives_the_labels_are_the_experts(robot: SimRobot, expert: Expert) -> None:
    """A policy that does nothing is told, again and again, to go to the block."""

    def idle(robot: SimRobot, expert: Expert) -> np.ndarray:
        return robot.target

    task = tasks("reach")[0]
    recorded = record_episode(
        task, 3, idle, every=10, robot=robot, expert=expert, start=lambda robot, rng: None
    )
    assert len(recorded) > 3
    block = robot.view().blocks[task.block]
    for sample in recorded:
        tip = kinematics.forward(*sample.chunk[-1, :5].tolist())
        assert np.hypot(tip.x - block.x, tip.y - block.y) < 0.03
        assert sample.answer == "moving to the red block"


def test_starts_lie_in_every_part_of_the_task(robot: SimRobot) -> None:
    held = done = 0
    for seed in range(120):
        robot.reset(tasks("place")[seed % 6], seed)
        start_somewhere(robot, np.random.default_rng(seed))
        held += robot.truth().held == robot.task.block
        done += robot.truth().answer == "done"
    assert held >= 10 and done >= 2


def test_a_pushed_block_lands_free(robot: SimRobot) -> None:
    for seed in range(30):
        robot.reset(tasks("reach")[0], seed)
        before = robot.view().blocks["red"]
        push_block(robot, "red", np.random.default_rng(seed))
        after = robot.view().blocks
        moved = np.hypot(after["red"].x - before.x, after["red"].y - before.y)
        assert moved < 0.121
        for other in ("green", "blue"):
            assert np.hypot(after["red"].x - after[other].x, after["red"].y - after[other].y) > 0.07
