"""The fast stages through the node: made at configure, told of, and acted by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from builders import make_checkpoint, make_config
from running import NodeProcess
from stack import CALM_SENSORS

from vla_accel_ros.nodes.clients.operator import Operator


def test_a_robot_acts_by_fast_stages_that_were_made_while_the_node_configured(
    start: Callable[..., NodeProcess], operator: Operator, tmp_path: Path
) -> None:
    model = make_checkpoint(tmp_path / "model", make_config())
    start("sim_robot", **CALM_SENSORS)
    node = start(
        "inference",
        autostart=True,
        model=str(model),
        device="cpu",
        fast=True,
        steps=2,
        language_hz=2.0,
    )
    operator.instruct("reach the red block")
    operator.wait(lambda: len(operator.chunks) >= 3 and operator.answers, 180.0, "three chunks and an answer")
    assert all(np.isfinite(received.chunk.actions).all() for received in operator.chunks)
    log = node.log
    assert "preparing fast stages, 1 of 4: prefix of 2 images and 16 words" in log
    assert "preparing fast stages, 4 of 4: 2 denoising steps of 1 guided chunks" in log
    assert "captured stages need a GPU" in log
