"""Inputs that are not like those in training are told, at load and while it runs, and stop nothing."""

from __future__ import annotations

import json

import numpy as np
from builders import make_checkpoint
from drivers import Drivers
from test_inputs import INSTRUCTION, line


def test_joints_and_pictures_outside_of_training_are_warnings_with_numbers(
    start, operator, contract, tmp_path
):
    model = make_checkpoint(tmp_path / "model")
    (file,) = model.glob("assets/*/norm_stats.json")
    data = json.loads(file.read_text())
    state = data["norm_stats"]["state"]
    elbow, gripper = 2, 5
    for joint, low, high in ((elbow, 2.5, 3.1), (gripper, 2.75, 2.75)):
        state["q01"][joint], state["q99"][joint] = low, high
    file.write_text(json.dumps(data))
    with Drivers(contract):  # joints at 0.1 rad, black pictures
        node = start("inference", autostart=True, model=str(model), steps=2, language_hz=0.0)
        node.wait_for_log(f"joint {contract.joint_names[gripper]} did not move in training")
        said = line(operator, "training", contract.joint_names[elbow])
        operator.instruct(INSTRUCTION)
        operator.wait(lambda: operator.chunks, 90.0, "chunk, since nothing is stopped for that")
        node.wait_for_log("not as in training")
    at = float(contract.to_policy(np.full(6, 0.1))[elbow])
    assert f"{at:.4g}" in said and "2.5" in said and "3.1" in said
    assert "camera front" in said and "camera wrist" in said and "dark" in said
    assert contract.joint_names[gripper] in said and "2.75" in said
    for name in (contract.joint_names[i] for i in (0, 1, 3, 4)):
        assert f"joint {name} " not in said
