"""What is said when live inputs are not like those in training, whose figures are the test's own."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import cv2
import numpy as np
import pytest

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.sensing.trained import TrainedImage, TrainedInputs, TrainedState

COLOURS = TrainedImage(np.array([120.0, 110.0, 90.0]), np.array([55.0, 50.0, 60.0]))


def scene(mean: float = 110.0, contrast: float = 50.0, colour: float = 30.0) -> np.ndarray:
    """A picture of 480 x 640 with that mean brightness and contrast, and colours that differ by that much."""
    rng = np.random.default_rng(0)
    light = cv2.resize(rng.normal(0, 1, (12, 16)), (640, 480), interpolation=cv2.INTER_CUBIC)
    light = mean + contrast * (light - light.mean()) / light.std()
    tint = colour * np.array([1.0, 0.0, -1.0])
    return np.clip(light[..., None] + tint, 0, 255).astype(np.uint8)


def told_mean(sentence: str) -> float:
    return float(sentence.partition("mean ")[2].partition(" ")[0])


def inputs(contract: Contract, **images: TrainedImage) -> TrainedInputs:
    """Joints moved -1 to 1 in training, but for the last, which stood at 0.5."""
    count = len(contract.joints)
    low, high, still = -np.ones(count), np.ones(count), np.arange(count) == count - 1
    low[-1] = high[-1] = 0.5
    return TrainedInputs(contract, TrainedState(low, high, 0.1 * (high - low), still), images)


def test_joints_as_in_training_and_a_little_beyond_are_nothing_to_say(contract):
    for position in (-1.1, 0.0, 1.1):
        assert inputs(contract).joints(np.array([position] * 5 + [0.5])) == []


def test_a_joint_beyond_its_training_is_named_with_the_numbers(contract):
    (warning,) = inputs(contract).joints(np.array([0.0, 0.0, -57.3, 0.0, 0.0, 0.5]))
    assert contract.joint_names[2] in warning and "-57.3" in warning and "-1 to 1" in warning


def test_a_joint_that_did_not_move_in_training_is_told_at_load_and_when_it_is_elsewhere(contract):
    trained, name = inputs(contract), contract.joint_names[-1]
    (warning,) = trained.still
    assert name in warning and "0.5" in warning
    assert trained.joints(np.array([0.0] * 5 + [0.505])) == []
    (warning,) = trained.joints(np.array([0.0] * 5 + [0.7]))
    assert name in warning and "0.7" in warning and "0.5" in warning


def test_a_continuous_joint_is_as_in_training_in_any_turn(contract):
    first, *further = contract.joints
    turning = replace(contract, joints=(replace(first, continuous=True, unit="deg", gain=None), *further))
    trained = inputs(turning)
    assert trained.joints(np.array([360.5, 0.0, 0.0, 0.0, 0.0, 0.5])) == []
    (warning,) = trained.joints(np.array([180.0, 0.0, 0.0, 0.0, 0.0, 0.5]))
    assert first.name in warning


def test_without_statistics_joints_are_not_judged(contract):
    trained = TrainedInputs(contract, None, {})
    assert trained.still == [] and trained.joints(np.full(6, 1e6)) == []


@pytest.mark.parametrize("images", [{}, {"base": COLOURS}])
def test_a_picture_as_in_training_is_nothing_to_say(contract, images):
    assert inputs(contract, **images).picture("front", "base", scene()) == []


@pytest.mark.parametrize(("mean", "contrast"), [(3.0, 2.0), (252.0, 2.0), (110.0, 1.0)])
def test_a_picture_that_no_training_has_is_told_with_numbers(contract, mean, contrast):
    picture = scene(mean, contrast, colour=0.0)
    (warning,) = inputs(contract).picture("front", "base", picture)
    assert "camera front" in warning and told_mean(warning) == pytest.approx(picture.mean(), abs=1.5)


@pytest.mark.parametrize(("mean", "contrast"), [(40.0, 20.0), (200.0, 25.0), (110.0, 12.0)])
def test_a_picture_far_from_the_cameras_statistics_is_told_with_both(contract, mean, contrast):
    picture = scene(mean, contrast, colour=10.0)
    assert inputs(contract).picture("front", "base", picture) == []
    (warning,) = inputs(contract, base=COLOURS).picture("front", "base", picture)
    assert told_mean(warning) == pytest.approx(picture.mean(), abs=1.5)
    assert "107" in warning and "55" in warning


def test_grey_pictures_are_told_unless_training_was_grey(contract):
    grey = scene(colour=0.0)
    _, coded = cv2.imencode(".jpg", grey)
    decoded = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR))
    for picture in (grey, decoded):
        (warning,) = inputs(contract, base=COLOURS).picture("front", "base", picture)
        assert "camera front" in warning and "grey" in warning
    trained = TrainedImage(np.full(3, 110.0), np.full(3, 50.0))
    assert inputs(contract, base=trained).picture("front", "base", grey) == []


def test_joints_in_training_are_the_same_in_another_process(contract: Contract) -> None:
    count = len(contract.joints)
    state = TrainedState(-np.ones(count), np.ones(count), np.full(count, 0.2), np.arange(count) == 1)
    received = TrainedState.of_lists(json.loads(json.dumps(state.as_lists())))
    for name, values in vars(state).items():
        np.testing.assert_array_equal(getattr(received, name), values)


@pytest.mark.parametrize(
    "lists",
    [None, 3, [], {}, {"low": [0.0]}, {"low": [0.0], "high": [1.0], "room": ["x"], "still": [0]}]
    + [{"low": [0.0], "high": [1.0, 2.0], "room": [0.1], "still": [0]}]
    + [
        {"low": [low], "high": [1.0], "room": [0.1], "still": [0]}
        for low in (math.nan, math.inf, 10**400, [0.0])
    ]
    + [dict.fromkeys(("low", "high", "room", "still"), "x" * 10**6)],
)
def test_joints_in_training_are_refused_when_malformed(lists: object) -> None:
    with pytest.raises(ValueError, match="joints in training") as refusal:
        TrainedState.of_lists(lists)
    assert len(str(refusal.value)) < 500
