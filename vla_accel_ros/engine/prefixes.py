"""Which frames are in the pool: a slot's keys and values are numbers, a Prefix says of what.

A Prefix is a held reference. Everyone who reads one has a handle of their own, so that nobody can give back
what another still reads; a handle can be given back twice without harm. What the newest frame is, the pool
knows.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from types import TracebackType

import numpy as np

from vla_accel_ros.engine.kv_pool import KVPool
from vla_accel_ros.engine.types import Observation


@dataclass(frozen=True)
class Prefix:
    """One frame's keys and values, held until released (or to the end of a `with` block).

    slot: where they are; version: of the frame, grows with every one; stamp_ns: capture time of the
    observation; n_tokens: image and prompt tokens; n_images: image tokens alone; state: float32 [D], the
    observation's; instruction: the words of the prompt, the observation's or a question (Engine.reword).
    """

    slot: int
    version: int
    stamp_ns: int
    n_tokens: int
    n_images: int
    state: np.ndarray
    instruction: str
    _of: Prefixes = field(repr=False, compare=False)
    _released: list[bool] = field(default_factory=lambda: [False], repr=False, compare=False)

    def release(self) -> None:
        """Give the slot back. Doing so twice is harmless; reading afterwards is an error."""
        self._of.release(self)

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
        self._of: list[Prefix | None] = [None] * pool.slots
        self._versions = itertools.count()

    def publish(self, slot: int, observation: Observation, n_tokens: int, n_images: int) -> Prefix:
        """An acquired slot is the newest frame from now on; it stays the caller's, as the Prefix."""
        state, version = np.array(observation.state, np.float32), next(self._versions)
        words = observation.instruction
        prefix = Prefix(slot, version, observation.stamp_ns, n_tokens, n_images, state, words, self)
        self._of[slot] = prefix
        self._pool.publish(slot, version)
        return prefix

    def beside(self, other: Prefix, slot: int, n_tokens: int, instruction: str) -> Prefix:
        """An acquired slot is another's frame with other words; it is not published."""
        prefix = replace(other, slot=slot, n_tokens=n_tokens, instruction=instruction, _released=[False])
        self._of[slot] = prefix
        return prefix

    def newest(self) -> Prefix | None:
        """The newest, held for the caller; None before the first."""
        slot = self._pool.newest()
        return None if slot is None else self._handle(slot)

    def hold(self, prefix: Prefix) -> Prefix:
        """Another handle of it, for a request that reads it whatever the caller does meanwhile.

        Raises ValueError if it was released, or is not one of these.
        """
        if prefix._of is not self:
            raise ValueError(f"prefix {prefix.version} is another engine's; observe the frame with this one.")
        if prefix._released[0]:
            raise ValueError(f"prefix {prefix.version} was released; hold it until the last request on it.")
        self._pool.retain(prefix.slot)
        return self._handle(prefix.slot)

    def release(self, prefix: Prefix) -> None:
        """Give a handle back; doing so twice is harmless."""
        if not prefix._released[0]:
            prefix._released[0] = True
            self._pool.release(prefix.slot)

    def _handle(self, slot: int) -> Prefix:
        prefix = self._of[slot]
        assert prefix is not None
        return replace(prefix, _released=[False])
