"""A hand's state by tf of real nodes: what the policy sees, what stops the robot, and what a bag has."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from builders import make_checkpoint, make_config, make_stats
from hand_arms import load, ur5e
from stand_ins import Arm
from tf_tree import HIGHER_M, START, Tree, contract_text

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.recording.jumps import parts
from vla_accel_ros.recording.reader import Bag
from vla_accel_ros.tools.export.episodes import episodes
from vla_accel_ros.tools.export.streams import Streams
from vla_accel_ros.tools.replay.again import replay
from vla_accel_ros.tools.replay.moments import Moments


@pytest.fixture
def contract(tmp_path: Path) -> Contract:
    return load(tmp_path, contract_text())


@pytest.fixture
def arm(operator: Operator) -> Iterator[Arm]:
    with Arm(operator, START) as arm:
        yield arm


def test_a_run_with_tf_is_recorded_with_it_and_replayed_to_the_bit(
    start, operator, arm, cameras, contract, tmp_path
) -> None:
    Tree(operator, arm)
    path, folder = str(tmp_path / "robot.yaml"), tmp_path / "bags"
    model = make_checkpoint(tmp_path / "model", make_config(image_names=("base_0_rgb",), horizon=16))
    stats = {"state": make_stats(0, joints=7), "actions": make_stats(1, joints=7)}
    (model / "assets" / "arm" / "norm_stats.json").write_text(json.dumps({"norm_stats": stats}))
    recorder = start("recorder", autostart=True, contract=path, record_dir=str(folder))
    start("inference", autostart=True, contract=path, model=str(model), steps=2, language_hz=0.0)
    topics = ("/tf", "/tf_static", contract.cameras[0].topic, "session", "observed", "action_chunk")

    def recorded(topic: str) -> bool:
        node = operator.node
        ends = node.get_subscriptions_info_by_topic(node.resolve_topic_name(topic))
        return any(end.node_name == "recorder" for end in ends)

    operator.wait(lambda: all(map(recorded, topics)), 90.0, "recorder that listens to all")
    operator.instruct("stay")
    operator.wait(lambda: len(operator.chunks) > 25, 180.0, "chunks")
    assert recorder.end() == 0
    (bag,) = map(Bag, folder.iterdir())
    result, moments = replay(Moments(bag)), Moments(bag)
    assert result.equal and result.chunks > 5
    counts = Counter(entry.topic for entry in bag.entries(("tf2_msgs/msg/TFMessage",)))
    assert counts["/tf"] > 15 and counts["/tf_static"] == 1
    assert "transient_local" in bag.offered["/tf_static"]
    states = [moment.state for moment in moments]
    for episode in episodes(Streams(parts(bag)[0]), 20, "measured")[0]:
        states += [*episode.states]
    seen = ur5e(START[:6])[:3, 3] + [0, 0, HIGHER_M]
    assert states and all(np.allclose(state[:3], seen, atol=1e-3) for state in states)
