"""What crosses the engine's boundary: an Observation in, a Chunk out.

Both are numpy and nothing else, so that sensing, control and the nodes can speak of them without importing
torch. They are frozen: a loop may hand one to another thread without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np


def _always() -> bool:
    return True


class Torn(RuntimeError):
    """The images of an observation were overwritten before their pixels were taken: observe the next one."""


@dataclass(frozen=True)
class Observation:
    """What the robot's cameras and joints said at one instant.

    images: policy image name (`base_0_rgb`, ...) -> uint8 [H, W, 3], RGB. A camera that is missing is absent.
    state: float32 [D], the joints in the contract's order, in the contract's units, not normalised.
    instruction: what the robot was told to do.
    stamp_ns: capture time of the oldest image, in nanoseconds of the ROS clock.
    intact: whether the images are still those that were observed. They may lie in memory that the cameras'
        processes write; who has taken the pixels asks then, and throws away what came of a no.
    stamps_ns: image name -> its capture time, where that is known.
    robot: whose it is, where several share an engine.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray
    instruction: str
    stamp_ns: int
    intact: Callable[[], bool] = field(default=_always, repr=False, compare=False)
    stamps_ns: Mapping[str, int] = field(default_factory=dict)
    robot: str = ""

    def check_intact(self) -> None:
        """To be called once the pixels were taken. Raises Torn if the images were overwritten until now."""
        if not self.intact():
            raise Torn(f"the images of {self.stamp_ns} were overwritten: use the next")


@dataclass(frozen=True)
class Agreement:
    """What a chunk was made to agree with; beside prefix, state and noise all it takes to compute it again.

    method: "guidance" (models.flow.rtc) or "trained" (models.flow.committed).
    actions: float32 [n, D], absolute, in the contract's units, due with the chunk's first n actions.
    delay: leading actions that are past when the chunk comes.
    end, schedule, jacobian, max_weight: see models.flow.rtc.Guidance; of "trained", n, "", "" and 0.
    previous: request_id of the chunk that was being executed.
    """

    method: str
    actions: np.ndarray
    delay: int
    end: int
    schedule: str
    jacobian: str
    max_weight: float
    previous: int


@dataclass(frozen=True)
class Chunk:
    """A piece of motion: H absolute joint targets, `step_dt_s` apart.

    actions: float32 [H, D], absolute positions in the contract's order; actions[i] is due at
        stamp_ns + (i + 1) * step_dt_s, so that an observation and its first action are one step apart.
    stamp_ns: capture time of the observation it answers, not of its computation.
    kv_version: version of the prefix it was computed from; versions only grow.
    request_id: number of the action request, unique within an engine.
    update_magnitudes: float32 [H], RMS of the last denoising update of each action, normalised units.
    agreement: what it was made to agree with, None when it is free.
    state: float32 [D], the joints that the network was given with the request; None when it had them with the
        images.
    step_magnitudes: float32 [S, H], as update_magnitudes of every denoising step; None where there are none.
    step_states: float32 [S, D], the joints that each denoising step was given; None where all had `state`.
    execution_horizon: how many leading actions may be executed before another comes, 1 to H; None = all.
    """

    actions: np.ndarray
    stamp_ns: int
    step_dt_s: float
    kv_version: int
    request_id: int
    update_magnitudes: np.ndarray
    agreement: Agreement | None = None
    state: np.ndarray | None = None
    step_magnitudes: np.ndarray | None = None
    execution_horizon: int | None = None
    step_states: np.ndarray | None = None

    @property
    def horizon(self) -> int:
        """Number of actions, H."""
        return self.actions.shape[0]

    @property
    def executed(self) -> int:
        """How many of them may be executed."""
        return self.horizon if self.execution_horizon is None else self.execution_horizon

    def due_ns(self, index: int) -> int:
        """Time at which actions[index] is due, in nanoseconds of the ROS clock."""
        return self.stamp_ns + round((index + 1) * self.step_dt_s * 1e9)

    def rest(self, stamp_ns: int) -> np.ndarray:
        """What is left of it at stamp_ns, as a chunk observed then would have it: float [h, D], h <= H.

        Where stamp_ns lies between two due times, actions are interpolated. Raises ValueError for a stamp
        before the chunk's own.
        """
        passed = (stamp_ns - self.stamp_ns) / (self.step_dt_s * 1e9)
        passed = round(passed) if abs(passed - round(passed)) < 1e-3 else passed
        if passed < 0:
            raise ValueError(
                f"chunk {self.request_id} begins {-passed:.4g} actions after the stamp asked for"
            )
        places = np.arange(max(0, math.floor(self.horizon - passed))) + passed
        before = np.floor(places).astype(int)
        part = (places - before)[:, None].astype(self.actions.dtype)
        after = np.minimum(before + 1, self.horizon - 1)
        return self.actions[before] * (1 - part) + self.actions[after] * part
