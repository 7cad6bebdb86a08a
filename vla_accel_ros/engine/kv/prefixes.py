"""The frames in the slots of a pool, and who holds them, without their memory (kv.pool) and without torch.

A prefix lives in one slot. Every reader holds a reference, so a newer frame can never overwrite what an
action or an answer still reads. A slot is reused when its count is zero. An exhausted pool is an error
instead of a wait: if vision waited for a slow reader, every camera frame would get old.

A Prefix is a counted reference to a slot, with the frame that its numbers belong to. Every reader has its own
handle, so nobody can release what another still reads; releasing a handle twice is harmless. `Prefixes` holds
the newest frame of each robot until the next one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from vla_accel_ros.types import Observation

if TYPE_CHECKING:
    import torch

    from vla_accel_ros.engine.robots import Embodiment


class PoolExhausted(RuntimeError):
    """Every slot is held, or every page is promised."""


class Slots:
    """Numbered places with counted references. Safe to use from several threads, and from the garbage
    collector, which may release a slot in the middle of any method. lock: held by each method; whoever holds
    it takes no other."""

    def __init__(self, slots: int) -> None:
        self._counts = [0] * slots
        self.lock = threading.RLock()

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self._counts)

    @property
    def free(self) -> int:
        """Number of slots that nobody holds."""
        with self.lock:
            return self._counts.count(0)

    def acquire(self) -> int:
        """Returns a free slot, held once. Raises PoolExhausted if there is none."""
        with self.lock:
            if 0 not in self._counts:
                raise PoolExhausted(
                    f"all {self.slots} KV slots are held; release them earlier or give the engine more."
                )
            slot = self._counts.index(0)
            self._counts[slot] = 1
            return slot

    @contextmanager
    def filling(self) -> Iterator[int]:
        """Acquire a free slot and run a block that fills it; the slot stays held unless the block raises.
        Raises as acquire does."""
        slot = self.acquire()
        with self.keeping(slot):
            yield slot

    @contextmanager
    def keeping(self, slot: int) -> Iterator[None]:
        """Run a block on a held slot; the slot stays held unless the block raises."""
        try:
            yield
        except BaseException:
            self.release(slot)
            raise

    @contextmanager
    def holding(self, count: int) -> Iterator[list[int]]:
        """Acquire `count` free slots for a block and release them after it. Raises as acquire does."""
        slots: list[int] = []
        try:
            for _ in range(count):
                slots.append(self.acquire())
            yield slots
        finally:
            for slot in slots:
                self.release(slot)

    def retain(self, slot: int) -> None:
        """Hold a slot once more that is held already. Raises ValueError if nobody holds it."""
        with self.lock:
            self._held(slot)
            self._counts[slot] += 1

    def release(self, slot: int) -> None:
        """Release one reference; the last one frees the slot. Raises ValueError if nobody holds it."""
        with self.lock:
            self._held(slot)
            self._counts[slot] -= 1

    def event(self) -> torch.cuda.Event | None:
        """Record an event after which another stream may read what this one has written; None on a CPU."""
        return None

    def wait(self, event: torch.cuda.Event) -> None:
        """Have the current stream wait for an event."""

    def _held(self, slot: int) -> None:
        if not 0 <= slot < self.slots or not self._counts[slot]:
            raise ValueError(f"KV slot {slot} is held by nobody; it was released too often.")


@dataclass(frozen=True)
class Prefix:
    """One frame's keys and values, held until released (or to the end of a `with` block).

    slot: place in the pool; version: number of the frame, which grows with every frame; stamp_ns: capture
    time of the observation; n_tokens: image and prompt tokens; n_images: image tokens alone; state: float32
    [D], the observation's; instruction: the words of the prompt, of the observation or a question; robot: its
    name; embodiment: of the robot when the frame was computed; ready: event after which a GPU stream may read
    it, None on a CPU.
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
        """Release the slot. Releasing twice is harmless; reading afterwards is an error."""
        self._of.release(self)

    def _handle(self) -> Prefix:
        """Another handle of the same slot, which the caller has retained once more. Every chunk needs one, so
        it copies the fields directly: dataclasses.replace takes four times as long."""
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

    def __init__(self, pool: Slots) -> None:
        self._pool = pool
        self._newest: dict[str, Prefix] = {}
        self._versions = itertools.count()
        self._lock = threading.RLock()

    def publish(
        self, slot: int, observation: Observation, embodiment: Embodiment, n_tokens: int, n_images: int
    ) -> Prefix:
        """Make an acquired slot, to which the current stream writes, its robot's newest frame. The returned
        Prefix takes over the caller's reference."""
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
            self._pool.event(),
            self,
        )
        self._pool.retain(slot)
        with self._lock:
            previous = self._newest.get(prefix.robot)
            if previous is None or previous.version < prefix.version:
                self._newest[prefix.robot], newest = prefix._handle(), previous
            else:
                newest = prefix._handle()
        if newest is not None:
            newest.release()
        return prefix

    def with_words(self, other: Prefix, slot: int, n_tokens: int, instruction: str) -> Prefix:
        """Returns a Prefix of an acquired slot that holds another prefix's frame with other words; it is not
        published."""
        return replace(
            other,
            slot=slot,
            n_tokens=n_tokens,
            instruction=instruction,
            ready=self._pool.event(),
            _released=[False],
        )

    def remove(self, robot: str) -> None:
        """Release a robot's newest frame: nobody acts on it any longer."""
        with self._lock:
            newest = self._newest.pop(robot, None)
        if newest is None:
            return
        if newest.ready is not None:  # the slot's next writer must wait for the lane that wrote it
            self._pool.wait(newest.ready)
        newest.release()

    def newest(self, robot: str = "") -> Prefix | None:
        """A robot's newest frame, held for the caller; None before the first."""
        with self._lock:
            newest = self._newest.get(robot)
            return None if newest is None else self.hold(newest)

    def newest_version(self, robot: str = "") -> int:
        """Version of a robot's newest frame; -1 before the first."""
        newest = self._newest.get(robot)
        return -1 if newest is None else newest.version

    def newest_instruction(self, robot: str = "") -> str:
        """Instruction of a robot's newest frame; empty before the first."""
        newest = self._newest.get(robot)
        return "" if newest is None else newest.instruction

    def hold(self, prefix: Prefix) -> Prefix:
        """Returns another handle of a prefix, for a request that reads it whatever the caller does meanwhile.

        Raises ValueError if it was released, or belongs to another engine.
        """
        if prefix._of is not self:
            raise ValueError(f"prefix {prefix.version} is another engine's; observe the frame with this one.")
        with self._pool.lock:  # else another thread may release it in between, and a new frame take its slot
            if prefix._released[0]:
                raise ValueError(
                    f"prefix {prefix.version} was released; hold it until the last request on it."
                )
            self._pool.retain(prefix.slot)
        return prefix._handle()

    def release(self, prefix: Prefix) -> None:
        """Release a handle; releasing twice is harmless."""
        with self._pool.lock:
            released, prefix._released[0] = prefix._released[0], True
        if not released:
            self._pool.release(prefix.slot)
