"""Every chunk in shared memory, some as messages with the same bits; and a bag of these replays whole.

However chunks are made: staggered, guided, plain or by fast stages, with noise of each request or of each
frame, and cut by a horizon. What is recorded of a chunk is all that it was computed from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import JOINTS, make_checkpoint, make_config
from calling import change
from lifecycle_msgs.msg import Transition
from running import NodeProcess
from stack import CALM_SENSORS, wait_for_recorder

from vla_accel_ros.control.chunking.chunk_record import ChunkReader, ChunkWriter
from vla_accel_ros.nodes.chunk_topic import slot_name
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.sensing.segment import segment_path
from vla_accel_ros.sensing.slot import SlotReader, SlotWriter
from vla_accel_ros.tools.replay.again import replay
from vla_accel_ros.tools.replay.moments import Moments
from vla_accel_ros.types import Chunk

MESSAGES_HZ, CHUNKS, FRAMES, STEPS = 4.0, 16, 8, 4
HORIZON = "static:13; *blue block=update_ratio:-0.99+least:11+elastic:1"

Start = Callable[..., NodeProcess]


def start_inference(start: Start, folder: Path, kind: str = "pi0", **parameters: object) -> NodeProcess:
    model = make_checkpoint(folder / "model", make_config(kind, horizon=16))
    options = {"steps": STEPS, "language_hz": 0.0, **parameters}
    return start("inference", autostart=True, model=str(model), **options)


class Slot:
    """The slot as it is read; `chunks` by request, as many as were seen; `first` and `last`, numbers."""

    def __init__(self, operator: Operator) -> None:
        self._slot = SlotReader(slot_name(operator.node))
        self._reader = ChunkReader(operator.contract.action_names)
        self.chunks: dict[int, Chunk] = {}
        self.first = self.last = 0

    def read(self) -> bool:
        """Read what there is; True."""
        for entry in self._slot.since(self.last):
            chunk = self._reader.chunk(entry.data)
            assert entry.stamp_ns == chunk.stamp_ns and self._reader.writer == "/inference"
            self.chunks[chunk.request_id] = chunk
            self.first, self.last = self.first or entry.number, entry.number
        return True


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("pi0", {"staggered": STEPS, "joints_each_step": True}),
        ("pi05", {"staggered": 3, "fast": True, "chunk_messages_hz": MESSAGES_HZ}),
        ("pi0", {"rtc": "always", "horizon": HORIZON, "chunk_messages_hz": MESSAGES_HZ}),
    ],
    ids=["staggered pi0, joints of each step", "staggered fast pi05", "guided, with a horizon"],
)
def test_chunks_in_the_slot_are_those_of_messages_and_a_bag_is_computed_again_to_the_bit(
    start: Start, operator: Operator, tmp_path: Path, kind: str, parameters: dict[str, Any]
) -> None:
    start("sim_robot", **CALM_SENSORS)
    recorder = start("recorder", autostart=True, record_dir=str(tmp_path / "bags"))
    start_inference(start, tmp_path, kind, **parameters)
    wait_for_recorder(operator)
    slot, begin_ns = Slot(operator), operator.now_ns()
    executed = {"red": 13, "blue": 12} if "horizon" in parameters else {"red": 16, "blue": 16}
    for colour, actions in executed.items():
        operator.instruct(f"reach the {colour} block")
        count = len(operator.chunks)

        def enough(actions: int = actions, count: int = count) -> bool:
            slot.read()
            chunks = [r.chunk for r in operator.chunks[count:] if r.chunk.executed == actions]
            return len(chunks) >= CHUNKS and len({chunk.kv_version for chunk in chunks}) >= FRAMES

        operator.wait(enough, 180.0, f"{CHUNKS} chunks of {actions} actions and {FRAMES} frames")
    seconds = (operator.now_ns() - begin_ns) * 1e-9
    chunks = [received.chunk for received in operator.chunks]
    assert {chunk.executed for chunk in chunks} == set(executed.values())
    requests, versions = [c.request_id for c in chunks], [c.kv_version for c in chunks]
    assert requests == sorted(set(requests)) and versions == sorted(versions)
    shared = [(chunk, slot.chunks[chunk.request_id]) for chunk in chunks if chunk.request_id in slot.chunks]
    assert shared
    for message, written in shared:
        assert message.actions.tobytes() == written.actions.tobytes()
        assert (message.stamp_ns, message.kv_version) == (written.stamp_ns, written.kv_version)
    if "chunk_messages_hz" in parameters:  # many more are made, and those between are in no message
        assert len(chunks) <= MESSAGES_HZ * seconds + 2
        assert slot.last - slot.first + 1 > 1.5 * len(chunks) and np.diff(requests).max() > 1
    names = {"inference: chunking", "inference: horizon"}
    operator.wait(lambda: names <= operator.diagnostics.keys(), 90.0, "lines of diagnostics")
    reason = operator.diagnostics["inference: chunking"].message
    assert (reason == "not guided: staggered") == ("staggered" in parameters)
    assert recorder.end() == 0

    moments = Moments(Bag(next((tmp_path / "bags").iterdir())))
    recorded = [chunk for moment in moments for chunk in moment.chunks]
    assert any(chunk.agreement is not None for chunk in recorded) == ("rtc" in parameters)
    assert {chunk.state is not None for chunk in recorded} == {kind == "pi0"}  # a pi05 has it in its prompt
    shapes = {None if chunk.step_states is None else chunk.step_states.shape for chunk in recorded}
    assert shapes == {(STEPS, JOINTS) if "joints_each_step" in parameters else None}
    if "joints_each_step" in parameters:  # newer joints begin chunks on one frame
        assert max(Counter(versions).values()) > 1
    result = replay(moments)
    assert result.equal and result.chunks >= CHUNKS, result.different_chunks


def test_slot_exists_while_the_node_is_active(start: Start, operator: Operator, tmp_path: Path) -> None:
    node = start_inference(start, tmp_path)
    path = segment_path(slot_name(operator.node))
    operator.wait(path.exists, 180.0, "slot")
    assert change(operator, "inference", Transition.TRANSITION_DEACTIVATE)
    assert not path.exists()
    assert change(operator, "inference", Transition.TRANSITION_ACTIVATE)
    assert path.exists()
    assert node.end() == 0
    assert not path.exists()


@pytest.mark.parametrize(("chunk_slot", "begins"), [("auto", True), ("true", False)])
def test_node_does_without_the_slot_of_another_process_unless_it_must_have_it(
    start: Start, operator: Operator, tmp_path: Path, chunk_slot: str, begins: bool
) -> None:
    name = slot_name(operator.node)
    other = SlotWriter(name, ChunkWriter(operator.contract.action_names, "/other").most_bytes)
    node = start_inference(start, tmp_path, chunk_slot=chunk_slot)
    reason = f"slot {name!r} is written by a process that runs"
    if begins:
        start("sim_robot", **CALM_SENSORS)
        operator.wait(lambda: operator.measured, 90.0, "joint state")
        operator.instruct("reach the red block")
        operator.wait(lambda: operator.chunks, 180.0, "chunks by the topic")
        assert f"chunks are sent by the topic only: {reason}" in node.log
    else:
        node.wait_for_log(f"cannot activate: {reason}", 180.0)
    other.close()
