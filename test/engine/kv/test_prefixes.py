"""Frames in the pool: counted handles and the newest of each robot, against a model that is a dictionary."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass

import pytest
import torch
from builders import NOBODY, make_config, make_observation
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.kv.prefixes import PoolExhausted, Prefix, Prefixes
from vla_accel_ros.types import Observation

SLOTS = 5
ROBOTS = ("", "left", "right")


def make_prefixes() -> tuple[KVPool, Prefixes]:
    pool = KVPool(make_config().prefix, SLOTS, 3, torch.device("cpu"), torch.float32)
    return pool, Prefixes(pool)


def seen_by(robot: str, words: str = "reach", stamp_ns: int = 1) -> Observation:
    seen = make_observation(instruction=words, stamp_ns=stamp_ns)
    return Observation(seen.images, seen.state, words, stamp_ns, robot=robot)


@dataclass
class Held:
    """A handle of the test's, and whether it was given back."""

    prefix: Prefix | None
    released: bool = False


class PrefixesMachine(RuleBasedStateMachine):
    """Every sequence of calls of several robots, whose frames may be published out of order."""

    handles = Bundle("handles")

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.prefixes = make_prefixes()
        self.counts: dict[int, int] = {}
        self.newest: dict[str, tuple[int, int, str]] = {}  # version, slot, words
        self.versions = 0

    @precondition(lambda self: len(self.counts) < SLOTS)
    @rule(
        target=handles,
        robot=st.sampled_from(ROBOTS),
        back=st.integers(0, 2),
        words=st.sampled_from(("reach", "put")),
    )
    def publish(self, robot: str, back: int, words: str) -> Held:
        """Now and then by a thread that took its version before another, which was faster."""
        self.versions += 3
        version = self.versions - 4 * back
        self.prefixes._versions = itertools.count(version)
        slot = self.pool.acquire()
        prefix = self.prefixes.publish(slot, seen_by(robot, words, self.versions), NOBODY, 3, 1)
        self.counts[slot] = 1
        assert (prefix.version, prefix.slot, prefix.robot) == (version, slot, robot)
        assert (prefix.stamp_ns, prefix.instruction) == (self.versions, words)
        before = self.newest.get(robot)
        if before is None or version > before[0]:
            self.counts[slot] += 1
            self.newest[robot] = (version, slot, words)
            if before is not None:
                self.drop(before[1])
        return Held(prefix)

    @precondition(lambda self: len(self.counts) == SLOTS)
    @rule()
    def there_is_no_slot(self) -> None:
        with pytest.raises(PoolExhausted, match=f"all {SLOTS} KV slots are held"):
            self.pool.acquire()

    @rule(target=handles, robot=st.sampled_from(ROBOTS))
    def take_the_newest(self, robot: str) -> Held:
        prefix = self.prefixes.newest(robot)
        if robot not in self.newest:
            assert prefix is None and self.prefixes.newest_version(robot) == -1
            assert self.prefixes.newest_instruction(robot) == ""
            return Held(prefix, released=True)
        version, slot, words = self.newest[robot]
        assert prefix is not None
        assert (prefix.version, prefix.slot, prefix.robot) == (version, slot, robot)
        assert self.prefixes.newest_version(robot) == version
        assert self.prefixes.newest_instruction(robot) == words
        self.counts[slot] += 1
        return Held(prefix)

    @rule(target=handles, held=handles)
    def hold(self, held: Held) -> Held:
        """A handle of its own, as long as the other was not given back."""
        if held.prefix is None:
            return held
        if held.released:
            with pytest.raises(ValueError, match=f"prefix {held.prefix.version} was released"):
                self.prefixes.hold(held.prefix)
            return held
        self.counts[held.prefix.slot] += 1
        return Held(self.prefixes.hold(held.prefix))

    @precondition(lambda self: len(self.counts) < SLOTS)
    @rule(target=handles, held=handles)
    def put_beside(self, held: Held) -> Held:
        """Other words of a frame have a slot of their own, and are never the newest."""
        if held.prefix is None:
            return held
        slot = self.pool.acquire()
        self.counts[slot] = 1
        other = self.prefixes.with_words(held.prefix, slot, 2, "other words")
        assert (other.version, other.stamp_ns) == (held.prefix.version, held.prefix.stamp_ns)
        assert (other.slot, other.n_tokens, other.instruction) == (slot, 2, "other words")
        return Held(other)

    @rule(held=handles, twice=st.booleans())
    def release(self, held: Held, twice: bool) -> None:
        """Doing so twice takes nobody else's reference."""
        if held.prefix is None:
            return
        for _ in range(1 + twice):
            held.prefix.release()
        if not held.released:
            held.released = True
            self.drop(held.prefix.slot)

    @rule(robot=st.sampled_from(ROBOTS))
    def remove(self, robot: str) -> None:
        """Whoever still reads its newest frame keeps it."""
        self.prefixes.remove(robot)
        if robot in self.newest:
            self.drop(self.newest.pop(robot)[1])

    @invariant()
    def free_slots_are_those_nobody_holds(self) -> None:
        assert self.pool.free == SLOTS - len(self.counts)

    def drop(self, slot: int) -> None:
        self.counts[slot] -= 1
        if not self.counts[slot]:
            del self.counts[slot]


TestPrefixes = PrefixesMachine.TestCase


def test_versions_grow_with_every_frame_whosever_it_is() -> None:
    pool, prefixes = make_prefixes()
    frames = [prefixes.publish(pool.acquire(), seen_by(robot), NOBODY, 3, 1) for robot in ROBOTS]
    assert [frame.version for frame in frames] == [0, 1, 2]
    assert [prefixes.newest_version(robot) for robot in ROBOTS] == [0, 1, 2]


def test_a_slot_is_no_other_frames_when_a_prefix_is_held_while_another_thread_releases_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool, prefixes = make_prefixes()
    prefix = prefixes.publish(pool.acquire(), seen_by(""), NOBODY, 3, 1)
    prefixes.remove("")
    other, retain = threading.Thread(target=prefix.release), pool.retain

    def late(slot: int) -> None:
        other.start()
        other.join(0.1)
        retain(slot)

    monkeypatch.setattr(pool, "retain", late)
    held = prefixes.hold(prefix)
    other.join()
    assert pool.free == SLOTS - 1
    held.release()
    assert pool.free == SLOTS


@pytest.mark.gpu
def test_a_robots_slot_is_written_again_after_the_lane_that_wrote_it() -> None:
    """Also if whoever removes the robot does so while that lane is still busy."""
    pool = KVPool(make_config().prefix, 1, 3, torch.device("cuda"), torch.float32)
    prefixes, lane = Prefixes(pool), torch.cuda.Stream()
    with torch.cuda.stream(lane):
        slot = pool.acquire()
        torch.cuda._sleep(1_000_000_000)
        pool.k[slot].fill_(1.0)
        prefix = prefixes.publish(slot, seen_by("left"), NOBODY, 3, 1)
    prefix.release()
    prefixes.remove("left")
    pool.k[pool.acquire()].fill_(2.0)
    torch.cuda.synchronize()
    assert pool.k.unique().tolist() == [2.0]
