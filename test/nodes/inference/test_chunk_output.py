"""Every chunk in shared memory, some of them as messages: the same bits, and a bag of some replays whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_checkpoint, make_config
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

MESSAGES_HZ, MESSAGES, STEPS = 4.0, 16, 4
S = 1_000_000_000

Start = Callable[..., NodeProcess]


def start_inference(start: Start, folder: Path, kind: str = "pi0", **parameters: object) -> NodeProcess:
    model = make_checkpoint(folder / "model", make_config(kind, horizon=16))
    given = {"steps": STEPS, "language_hz": 0.0, **parameters}
    return start("inference", autostart=True, model=str(model), **given)


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
    "parameters",
    [{"staggered": STEPS}, {"rtc": "always"}, {"staggered": STEPS, "noise": "coherent"}],
    ids=["staggered", "guided", "staggered, coherent"],
)
def test_a_bag_of_some_of_the_chunks_is_computed_again_to_the_bit(
    start: Start, operator: Operator, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    start("sim_robot", **CALM_SENSORS)
    recorder = start("recorder", autostart=True, record_dir=str(tmp_path / "bags"))
    start_inference(start, tmp_path, chunk_messages_hz=MESSAGES_HZ, **parameters)
    wait_for_recorder(operator)
    slot, begin_ns = Slot(operator), operator.now_ns()
    operator.instruct("reach the red block")
    operator.wait(
        lambda: slot.read() and len(operator.chunks) >= MESSAGES, 180.0, f"{MESSAGES} chunks as messages"
    )
    told = {received.chunk.request_id: received.chunk for received in operator.chunks}
    seconds = (operator.now_ns() - begin_ns) * 1e-9
    assert len(told) <= MESSAGES_HZ * seconds + 2
    assert slot.last - slot.first + 1 > 1.5 * len(told)  # many more than are told
    both = told.keys() & slot.chunks.keys()
    assert both
    for request in both:
        one, other = told[request], slot.chunks[request]
        assert one.actions.tobytes() == other.actions.tobytes()
        assert (one.stamp_ns, one.kv_version) == (other.stamp_ns, other.kv_version)
    assert recorder.end() == 0

    moments = Moments(Bag(next((tmp_path / "bags").iterdir())))
    found = [chunk for moment in moments for chunk in moment.chunks]
    guided = [chunk for chunk in found if chunk.agreement is not None]
    assert bool(guided) == ("rtc" in parameters)
    assert all(chunk.state is not None for chunk in found)
    result = replay(Moments(Bag(next((tmp_path / "bags").iterdir()))))
    assert result.equal and result.chunks >= MESSAGES // 2, result.different_chunks
    requests = sorted(chunk.request_id for chunk in found)
    assert np.diff(requests).max() > 1  # those between were never told


def test_the_slot_is_there_while_the_node_is_active(start: Start, operator: Operator, tmp_path: Path) -> None:
    node = start_inference(start, tmp_path)
    path = segment_path(slot_name(operator.node))
    operator.wait(path.exists, 180.0, "slot")
    assert change(operator, "inference", Transition.TRANSITION_DEACTIVATE)
    assert not path.exists()
    assert change(operator, "inference", Transition.TRANSITION_ACTIVATE)
    assert path.exists()
    assert node.end() == 0
    assert not path.exists()


@pytest.mark.parametrize(("chunk_slot", "begins"), [("auto", True), ("true", False), ("false", True)])
def test_where_another_process_has_the_slot(
    start: Start, operator: Operator, tmp_path: Path, chunk_slot: str, begins: bool
) -> None:
    name = slot_name(operator.node)
    other = SlotWriter(name, ChunkWriter(operator.contract.action_names, "/other").most_bytes)
    node = start_inference(start, tmp_path, chunk_slot=chunk_slot)
    sentence = f"slot {name!r} is written by a process that runs"
    if begins:
        start("sim_robot", **CALM_SENSORS)
        operator.wait(lambda: operator.measured, 90.0, "joint state")
        operator.instruct("reach the red block")
        operator.wait(lambda: operator.chunks, 180.0, "chunks by the topic")
        assert (f"chunks are sent by the topic only: {sentence}" in node.log) == (chunk_slot == "auto")
    else:
        node.wait_for_log(f"cannot activate: {sentence}", 180.0)
    other.close()
