"""Sets of a real GPU's multiprocessors: they share none, graphs keep them, what is computed is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from builders import make_observation, make_policy
from running_stream import Running

from vla_accel_ros.engine.config import ACTIONS_APART, ALL_APART, Split
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.lanes.partitions import divide
from vla_accel_ros.engine.rules.partition import Partitions, candidates

pytestmark = pytest.mark.gpu
SEVERAL = (ACTIONS_APART, ALL_APART)
PROMPTS = (5, 6, 7, 8)


def cuda() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def quarter() -> int:
    """Multiprocessors for actions."""
    there = torch.cuda.get_device_properties(cuda()).multi_processor_count
    return candidates(there)[0]


def engine_of(kind: str, staggered: int, lanes: str, **options: Any) -> Engine:
    engine = Engine(
        make_policy(kind, device="cuda"),
        lanes=lanes,
        slots=16,
        steps=4,
        fast=True,
        staggered=staggered,
        **options,
    )
    engine.prepare([2], PROMPTS)
    return engine


def chunks(engine: Engine) -> list[np.ndarray]:
    """Of some frames, and a text of each in bytes."""
    found = []
    for seed in range(4):
        with engine.observe(make_observation(seed)) as prefix:
            found += [engine.act(prefix, noise=number).actions for number in range(3)]
            found.append(np.frombuffer("".join(engine.ask(prefix, max_tokens=8)).encode(), np.uint8))
    return found


def test_two_sets_share_no_multiprocessor_and_graphs_keep_theirs() -> None:
    from processor_ids import ProcessorIds

    there = torch.cuda.get_device_properties(cuda()).multi_processor_count
    one, two = divide(cuda(), quarter())
    assert one.sms + two.sms == there
    ids = ProcessorIds(cuda())
    mine, other = ids.found(one.streams[0]), ids.found(two.streams[0])
    assert (len(mine), len(other)) == (one.sms, two.sms)
    assert not mine & other
    for number, (part, expected) in enumerate(((one, mine), (two, other))):
        captured = ProcessorIds(cuda())
        captured.partition = number
        captured.capture(part.streams[0])
        assert captured.captured
        for stream in (None, torch.cuda.Stream(), two.streams[0], one.streams[0]):
            assert captured.found(stream) == expected, "wherever it is replayed"
    assert len(ids.found()) == there


def test_a_number_that_the_device_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="multiprocessors was asked for"):
        divide(cuda(), 100_000)


@pytest.mark.parametrize("staggered", [0, 4])
@pytest.mark.parametrize("lanes", SEVERAL)
def test_chunks_and_text_have_the_same_bits_in_a_partition(kind: str, staggered: int, lanes: str) -> None:
    plain = chunks(engine_of(kind, staggered, lanes))
    engine = engine_of(kind, staggered, lanes, partition=f"{quarter()}:1")
    split = engine.runner.partitioned.split
    assert split is not None and split.actions == quarter()
    for found, expected in zip(chunks(engine), plain, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("staggered", [0, 4])
@pytest.mark.parametrize("lanes", SEVERAL)
def test_a_stream_in_a_partition_can_be_made_again(staggered: int, lanes: str) -> None:
    engine = engine_of("pi0", staggered, lanes, partition=f"{quarter()}:1")
    running = Running(engine, 200)
    running.stream.start()
    running.wait()
    running.stream.stop()
    running.assert_made_again(10)


@pytest.mark.parametrize("staggered", [0, 4])
def test_auto_measures_and_takes_one_or_none_with_the_same_bits(staggered: int) -> None:
    plain = chunks(engine_of("pi05", staggered, "three"))
    engine = engine_of("pi05", staggered, "three", partition="auto", camera_hz=30.0, action_hz=1000.0)
    partitioned = engine.runner.partitioned
    assert not partitioned.chooses and partitioned.reason.startswith("partition: auto takes")
    assert [one.split is None for one in partitioned.measured].count(True) == 1
    assert len(partitioned.measured) > 1
    for found, expected in zip(chunks(engine), plain, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("staggered", [0, 4])
def test_switching_between_captured_splits_changes_no_bit(
    staggered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = chunks(engine_of("pi0", staggered, "three"))
    engine = engine_of("pi0", staggered, "three", partition="auto")
    partitioned = engine.runner.partitioned
    assert partitioned.streams is not None and partitioned.rule is not None
    splits = partitioned.streams.splits
    partitioned.streams.use(splits[-1])
    partitioned.rule.sets = splits
    engine.prepare([2], PROMPTS)
    turns: list[Split] = []

    def split(rule: Partitions) -> Split:
        turns.append(splits[len(turns) % len(splits)])
        return turns[-1]

    monkeypatch.setattr(Partitions, "split", property(split))
    for found, expected in zip(chunks(engine), plain, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert set(turns) == set(splits)
