"""The types at the engine's boundary: an Observation in, a Chunk out.

Both need only numpy, so that sensing, control and nodes can use them without torch. They are frozen: one
thread may pass one to another without a copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np


def _always() -> bool:
    return True


class Torn(RuntimeError):
    """The images of an observation were overwritten before their pixels were read; use the next
    observation."""


@dataclass(frozen=True)
class Observation:
    """What the robot's cameras and joints reported at one instant.

    images: policy image name (`base_0_rgb`, ...) -> uint8 [H, W, 3], RGB. A missing camera is absent.
    state: float32 [D], the joints in the contract's order and units, not normalised.
    instruction: what the robot was told to do.
    stamp_ns: capture time of the oldest camera's image, in nanoseconds of the ROS clock.
    intact: whether the images are still those that were observed. They may lie in shared memory that a camera
        process writes; ask after reading the pixels, and discard the result if it returns False.
    stamps_ns: image name -> its capture time, where known.
    robot: the robot's name, where several share an engine.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray
    instruction: str
    stamp_ns: int
    intact: Callable[[], bool] = field(default=_always, repr=False, compare=False)
    stamps_ns: Mapping[str, int] = field(default_factory=dict)
    robot: str = ""

    def check_intact(self) -> None:
        """Call it after reading the pixels. Raises Torn if the images have been overwritten."""
        if not self.intact():
            raise Torn(f"the images of {self.stamp_ns} were overwritten: use the next")


@dataclass(frozen=True)
class Agreement:
    """What a chunk was made to agree with. With prefix, state and noise it is all that is needed to compute
    the chunk again.

    method: "guidance" (models.flow.rtc) or "trained" (models.flow.committed).
    actions: float32 [n, D], absolute, in the contract's units, due with the chunk's first n actions.
    delay: leading actions that are past when the chunk arrives.
    end, schedule, jacobian, max_weight: see models.flow.rtc.Guidance; for "trained" they are n, "", "" and 0.
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
    stamp_ns: capture time of its observation, not of its computation.
    kv_version: version of the prefix that it was computed from; versions only grow.
    request_id: number of the action request, unique within an engine.
    update_magnitudes: float32 [H], RMS of the last denoise update of each action, in normalised units.
    agreement: what it was made to agree with, None if it is free.
    state: float32 [D], the joints given to the network with the request; None if it got them with the images.
    step_magnitudes: float32 [S, H], as update_magnitudes for every denoise step; None if there are none.
    step_states: float32 [S, D], the joints given to each denoise step; None if all used `state`.
    execution_horizon: how many leading actions may be executed before the next chunk, 1 to H; None = all.
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
        """How many actions may be executed."""
        return self.horizon if self.execution_horizon is None else self.execution_horizon

    def due_ns(self, index: int) -> int:
        """Time at which actions[index] is due, in nanoseconds of the ROS clock."""
        return self.stamp_ns + round((index + 1) * self.step_dt_s * 1e9)

    def rest(self, stamp_ns: int) -> np.ndarray:
        """Return what is left at stamp_ns, as a chunk observed then would have it: float [h, D], h <= H.

        Between two due times, actions are interpolated. Raises ValueError if stamp_ns is before the chunk's
        own stamp.
        """
        passed = (stamp_ns - self.stamp_ns) / (self.step_dt_s * 1e9)
        passed = round(passed) if abs(passed - round(passed)) < 1e-3 else passed
        if passed < 0:
            raise ValueError(
                f"chunk {self.request_id} begins {-passed:.4g} actions after the requested stamp"
            )
        places = np.arange(max(0, math.floor(self.horizon - passed))) + passed
        earlier = np.floor(places).astype(int)
        part = (places - earlier)[:, None].astype(self.actions.dtype)
        later = np.minimum(earlier + 1, self.horizon - 1)
        return self.actions[earlier] * (1 - part) + self.actions[later] * part
