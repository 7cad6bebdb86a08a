"""Whether what comes in looks like what the checkpoint was trained on, with numbers where it does not.

A policy gives actions for any numbers and pixels, and outside of its training they mean nothing: joints in
other units or far from where they ever were, a covered lens, an infrared picture in place of colours. Nothing
else notices, because each message is valid. These are warnings only: a policy may be meant to go further, so
nothing here stops a robot.

Joints are compared with the statistics that normalise them, with room beyond. Pictures are compared with the
statistics of their camera where the checkpoint has them; without, only a picture that no training has is
told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.control.limits.joint_limits import TURN, JointLimits, near

_STILL_OF_RANGE = 0.01
_SAMPLED = 64
"""Rows and columns of a picture that are looked at."""
_DARK, _BRIGHT, _FLAT = 8.0, 247.0, 4.0
_GREY, _GREY_SHARE = 3, 0.999
_OTHER_BRIGHTNESS, _LESS_CONTRAST = 1.0, 1.0 / 3.0


@dataclass(frozen=True)
class TrainedState:
    """The joints in training, float64 [D] each in the policy's units. low, high: quantiles, extremes, or mean
    -+ 2 standard deviations. room: how far beyond is nothing unusual. still: bool [D], which did not move."""

    low: np.ndarray
    high: np.ndarray
    room: np.ndarray
    still: np.ndarray

    def as_lists(self) -> dict[str, list[float]]:
        """As what JSON can hold."""
        return {name: values.tolist() for name, values in vars(self).items()}

    @classmethod
    def of_lists(cls, lists: object) -> TrainedState:
        """From another process's `as_lists`. Raises ValueError if they are none."""
        try:
            columns = [np.asarray(lists[name], np.float64) for name in ("low", "high", "room", "still")]  # type: ignore[index]
        except (TypeError, KeyError, ValueError, IndexError, OverflowError):
            raise ValueError("joints in training are no lists low, high, room and still of numbers") from None
        if any(column.ndim != 1 or len(column) != len(columns[0]) for column in columns):
            raise ValueError("joints in training have low, high, room and still of different lengths")
        if not np.isfinite(columns).all():
            raise ValueError("joints in training are not finite")
        low, high, room, still = columns
        return cls(low, high, room, still.astype(bool))


class TrainedImage(NamedTuple):
    """The pixels of one camera in training, float64 [3] of 0..255: mean and standard deviation."""

    mean: np.ndarray
    std: np.ndarray


class TrainedInputs:
    """Compares the inputs of a contract's robot with training. state: None if unknown. images: by the
    policy's names, of those that are known."""

    def __init__(
        self,
        contract: Contract,
        state: TrainedState | None = None,
        images: Mapping[str, TrainedImage] | None = None,
    ) -> None:
        self._names, self._images = contract.state_names, images or {}
        self._state = state
        scale = np.abs([joint.scale for joint in contract.observed])
        limits, names = JointLimits.of(contract.observed), [joint.name for joint in contract.observed]
        turns = dict(zip(names, TURN * scale * limits.continuous))
        room = dict(zip(names, _STILL_OF_RANGE * scale * limits.span))
        # the numbers of a hand are metres, or about a turn
        self._turns = np.array([turns.get(name, 0.0) for name in self._names])
        self._still_room = np.array([room.get(name, _STILL_OF_RANGE) for name in self._names])

    @property
    def still(self) -> list[str]:
        """A sentence for each joint that did not move in training."""
        if self._state is None:
            return []
        low, still = self._state.low, self._state.still
        return [
            f"joint {name} did not move in training (its deviation is 0, at {value:.4g} in the policy's "
            "units): the policy knows it only there"
            for name, value, stood in zip(self._names, low, still)
            if stood
        ]

    def joints(self, state: np.ndarray) -> list[str]:
        """A sentence for each joint outside of training. state: float [D] in the policy's units."""
        if self._state is None:
            return []
        low, high, room, still = vars(self._state).values()
        count = min(len(low), len(state))
        low, high, room, still = low[:count], high[:count], room[:count], still[:count]
        room = np.where(still, self._still_room[:count], room)
        values = near(np.asarray(state, np.float64)[:count], (low + high) / 2, self._turns[:count])
        return [
            f"joint {name} is at {value:.4g} and was "
            + (f"always at {lower:.4g}" if stood else f"at {lower:.4g} to {upper:.4g}")
            + " in training, in the policy's units: look at its unit, sign, offset, and the robot's pose"
            for name, value, lower, upper, spare, stood in zip(self._names, values, low, high, room, still)
            if not lower - spare <= value <= upper + spare
        ]

    def picture(self, camera: str, image: str, pixels: np.ndarray) -> list[str]:
        """Sentences about a picture, uint8 [H, W, 3] in RGB. camera: our name. image: the policy's."""
        strides = (max(size // _SAMPLED, 1) for size in pixels.shape[:2])
        sample = pixels[tuple(slice(None, None, stride) for stride in strides)].astype(np.float64)
        mean, contrast, trained = sample.mean(), sample.mean(axis=2).std(), self._images.get(image)
        facts = f"camera {camera}: mean {mean:.0f} of 255, contrast {contrast:.0f}"
        if mean < _DARK or mean > _BRIGHT or contrast < _FLAT:
            look = "dark" if mean < _DARK else "white" if mean > _BRIGHT else "all of one colour"
            return [f"{facts}: its pictures are {look}: look at its lens, its light and its exposure"]
        sentences = []
        if trained is not None:
            usual, spread = float(trained.mean.mean()), float(trained.std.mean())
            if abs(mean - usual) > _OTHER_BRIGHTNESS * spread or contrast < _LESS_CONTRAST * spread:
                sentences.append(
                    f"{facts}; in training {usual:.0f} and {spread:.0f}: look at its light and its exposure"
                )
        if (trained is None or np.ptp(trained.mean) > 1.0) and _is_grey(sample):
            sentences.append(
                f"camera {camera} sends grey pictures, the same in red, green and blue: is it in its night "
                "mode, or is another stream of it meant (color/image_raw)?"
            )
        return sentences


def _is_grey(sample: np.ndarray) -> bool:
    """Whether a picture, float64 [h, w, 3], has no colour."""
    return float((np.ptp(sample, axis=2) <= _GREY).mean()) >= _GREY_SHARE
