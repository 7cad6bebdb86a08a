"""Staggered chunks through the node: recorded, each is what one request for its frame and joints makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import JOINTS, make_checkpoint, make_config
from running import NodeProcess
from stack import CALM_SENSORS, wait_for_recorder

from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.tools.replay.again import replay
from vla_accel_ros.tools.replay.moments import Moments

CHUNKS, FRAMES, STEPS = 30, 20, 4

Start = Callable[..., NodeProcess]


def start_inference(start: Start, folder: Path, kind: str = "pi05", **parameters: object) -> NodeProcess:
    model = make_checkpoint(folder / "model", make_config(kind, horizon=16))
    given = {"steps": STEPS, "language_hz": 0.0, **parameters}
    return start("inference", autostart=True, model=str(model), **given)


def chunking(operator: Operator) -> str:
    """What inference says of its chunks."""
    line = operator.diagnostics.get("inference: chunking")
    return "" if line is None else line.message


@pytest.mark.parametrize(
    ("kind", "fast", "staggered", "noise"),
    [("pi0", False, STEPS, "fresh"), ("pi05", True, 3, "coherent")],
    ids=["plain pi0 with the joints of each step", "fast pi05, coherent"],
)
def test_every_chunk_is_computed_again_to_the_bit(
    start: Start, operator: Operator, tmp_path: Path, kind: str, fast: bool, staggered: int, noise: str
) -> None:
    start("sim_robot", **CALM_SENSORS)
    recorder = start("recorder", autostart=True, record_dir=str(tmp_path / "bags"))
    each = {"joints_each_step": True} if kind == "pi0" else {}
    start_inference(start, tmp_path, kind, fast=fast, staggered=staggered, noise=noise, **each)
    wait_for_recorder(operator)
    operator.instruct("reach the red block")
    operator.wait(lambda: len(operator.chunks) >= CHUNKS, 180.0, f"{CHUNKS} chunks")
    operator.instruct("reach the blue block")
    count = len(operator.chunks)

    def many() -> bool:
        """Also frames: those that were seen as recording began may not be in the bag."""
        later = operator.chunks[count:]
        return len(later) >= CHUNKS and len({one.chunk.kv_version for one in later}) >= FRAMES

    operator.wait(many, 180.0, f"{CHUNKS} more chunks of {FRAMES} frames")
    operator.wait(lambda: chunking(operator) == "not guided: staggered", 90.0, "word in the diagnostics")
    chunks = [received.chunk for received in operator.chunks]
    requests = [chunk.request_id for chunk in chunks]
    assert requests == sorted(set(requests))
    assert [chunk.kv_version for chunk in chunks] == sorted(chunk.kv_version for chunk in chunks)
    assert recorder.end() == 0

    moments = Moments(Bag(next((tmp_path / "bags").iterdir())))
    result = replay(moments)
    assert result.equal and result.chunks >= CHUNKS, result.different_chunks
    given = [chunk.step_states for moment in moments for chunk in moment.chunks]
    assert {None if states is None else states.shape for states in given} == {
        (STEPS, JOINTS) if each else None
    }
    if kind == "pi0":  # newer joints begin chunks on one frame
        assert max(Counter(chunk.kv_version for chunk in chunks).values()) > 1


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"staggered": 1}, "staggered is 1, but it is how many chunks are denoised at once: give 2 to 64"),
        ({"joints_each_step": True}, "joints_each_step is true, but only staggered chunks are computed step"),
        ({"staggered": 2, "rtc": "always"}, "rtc is always, but staggered chunks cannot be guided"),
    ],
)
def test_what_cannot_be_is_refused(
    start: Start, tmp_path: Path, parameters: dict[str, Any], sentence: str
) -> None:
    start_inference(start, tmp_path, **parameters).wait_for_log(sentence)


def test_a_trajectory_node_that_wants_guided_chunks_is_told_that_there_are_none(
    start: Start, operator: Operator, tmp_path: Path
) -> None:
    start("trajectory", autostart=True, mode="rtc")
    inference = start_inference(start, tmp_path, staggered=2)
    inference.wait_for_log("but staggered chunks are not guided: set its mode to blend")
