"""The inference node on CUDA with all its threads: configured, streaming, and on its own timeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import make_checkpoint, make_config
from drivers import Drivers
from running import NodeProcess

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.nodes.clients.operator import Operator
from vla_accel_ros.nodes.clients.timelines import Timelines

READY_S = 400.0
"""To compile kernels, too."""


@pytest.mark.gpu
@pytest.mark.parametrize("staggered", (0, 2))
def test_the_node_streams_on_a_gpu(
    start: Callable[..., NodeProcess], operator: Operator, contract: Contract, tmp_path: Path, staggered: int
) -> None:
    model = make_checkpoint(tmp_path / "model", make_config("pi0"))
    more = {"staggered": staggered, "staggering": "fresh"} if staggered else {}
    with Drivers(contract):
        node = start(
            "inference",
            autostart=True,
            model=str(model),
            device="auto",
            steps=2,
            vision_hz=30.0,
            action_hz=200.0,
            language_hz=2.0,
            **more,
        )
        operator.instruct("reach the red block")
        operator.wait(
            lambda: len(operator.chunks) >= 20 and operator.answers, READY_S, "20 chunks and an answer"
        )
        with Timelines() as timelines:
            records, _ = timelines.read(10.0, 30.0, ("inference",))
    assert all(np.isfinite(received.chunk.actions).all() for received in operator.chunks)
    assert "cuda, bfloat16, captured stages" in node.log
    assert "loop: " not in node.log, "no loop failed"
    tracks = {event.track for record in records for event in record.events}
    assert {"lane main", "GPU, lane main", "topic /action_chunk"} <= tracks
