"""Which frames are in the pool: a slot's keys and values are numbers, a Prefix says of what.

A Prefix is a held reference. Everyone who reads one has a handle of their own, so that nobody can give back
what another still reads; a handle can be given back twice without harm. The newest frame of each robot is
held here, until the next.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field, replace
from types import TracebackType

import numpy as np
import torch

from vla_accel_ros.engine.current_stream import current_stream
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.types import Observation


@dataclass(frozen=True)
class Prefix:
    """One frame's keys and values, held until released (or to the end of a `with` block).

    slot: where they are; version: of the frame, grows with every one; stamp_ns: capture time of the
    observation; n_tokens: image and prompt tokens; n_images: image tokens alone; state: float32 [D], the
    observation's; instruction: the words of the prompt, the observation's or a question; robot: whose it is;
    embodiment: that it was computed for; ready: after which a stream of a GPU may read it, None on a CPU.
    """

    slot: int
    version: int
    stamp_ns: int
    n_tokens: int
    n_images: int
    state: np.ndarray
    instruction: str
    robot: str
    embodiment: Embodiment = field(repr=False, compare=False)
    ready: torch.cuda.Event | None = field(repr=False, compare=False)
    _of: Prefixes = field(repr=False, compare=False)
    _released: list[bool] = field(default_factory=lambda: [False], repr=False, compare=False)

    def release(self) -> None:
        """Give the slot back. Doing so twice is harmless; reading afterwards is an error."""
        self._of.release(self)

    def _handle(self) -> Prefix:
        """Another of the same, for which the slot is held once more. Each chunk has one, so it is a copy of
        the fields and not dataclasses.replace, which takes four times as long."""
        handle = object.__new__(Prefix)
        vars(handle).update(vars(self), _released=[False])
        return handle

    def __enter__(self) -> Prefix:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Prefixes:
    """The frames of one pool. Safe to use from several threads."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._newest: dict[str, Prefix] = {}
        self._versions = itertools.count()
        self._lock = threading.RLock()

    def publish(
        self, slot: int, observation: Observation, embodiment: Embodiment, n_tokens: int, n_images: int
    ) -> Prefix:
        """An acquired slot, to which the current stream writes, is its robot's newest frame from now on; it
        stays the caller's, as the Prefix."""
        prefix = Prefix(
            slot,
            next(self._versions),
            observation.stamp_ns,
            n_tokens,
            n_images,
            np.array(observation.state, np.float32),
            observation.instruction,
            observation.robot,
            embodiment,
            self._event(),
            self,
        )
        self._pool.retain(slot)
        with self._lock:
            before = self._newest.get(prefix.robot)
            if before is None or before.version < prefix.version:
                self._newest[prefix.robot], newest = prefix._handle(), before
            else:
                newest = prefix._handle()
        if newest is not None:
            newest.release()
        return prefix

    def beside(self, other: Prefix, slot: int, n_tokens: int, instruction: str) -> Prefix:
        """An acquired slot is another's frame with other words; it is not published."""
        return replace(
            other,
            slot=slot,
            n_tokens=n_tokens,
            instruction=instruction,
            ready=self._event(),
            _released=[False],
        )

    def remove(self, robot: str) -> None:
        """Give a robot's newest back: nobody acts on it any longer."""
        with self._lock:
            newest = self._newest.pop(robot, None)
        if newest is None:
            return
        if newest.ready is not None:  # who writes to the slot next comes after the lane that wrote it
            current_stream(self._pool.k.device).wait_event(newest.ready)
        newest.release()

    def newest(self, robot: str = "") -> Prefix | None:
        """The newest of a robot, held for the caller; None before the first."""
        with self._lock:
            newest = self._newest.get(robot)
            return None if newest is None else self.hold(newest)

    def newest_version(self, robot: str = "") -> int:
        """Its version; -1 before the first."""
        newest = self._newest.get(robot)
        return -1 if newest is None else newest.version

    def newest_words(self, robot: str = "") -> str:
        """Its instruction; empty before the first."""
        newest = self._newest.get(robot)
        return "" if newest is None else newest.instruction

    def hold(self, prefix: Prefix) -> Prefix:
        """Another handle of it, for a request that reads it whatever the caller does meanwhile.

        Raises ValueError if it was released, or is not one of these.
        """
        if prefix._of is not self:
            raise ValueError(f"prefix {prefix.version} is another engine's; observe the frame with this one.")
        if prefix._released[0]:
            raise ValueError(f"prefix {prefix.version} was released; hold it until the last request on it.")
        self._pool.retain(prefix.slot)
        return prefix._handle()

    def release(self, prefix: Prefix) -> None:
        """Give a handle back; doing so twice is harmless."""
        if not prefix._released[0]:
            prefix._released[0] = True
            self._pool.release(prefix.slot)

    def _event(self) -> torch.cuda.Event | None:
        device = self._pool.k.device
        return current_stream(device).record_event() if device.type == "cuda" else None
