"""LeRobot finds the policy type `vla_accel` by itself, and acts by a policy server's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peers import run
from policy_servers import serving

pytestmark = pytest.mark.peers

ROOT = Path(__file__).resolve().parents[2]
DRIVE = """
import sys
from types import SimpleNamespace
import numpy as np
import torch
from lerobot.configs import PreTrainedConfig
from lerobot.policies import make_policy, make_pre_post_processors
from lerobot.rollout.inference.rtc import supports_rtc_inference
from lerobot.utils.import_utils import register_third_party_plugins

given, folder, out = sys.argv[1:]
register_third_party_plugins()
config = PreTrainedConfig.from_pretrained(folder)
config.pretrained_path = folder
pixel = {"dtype": "video", "shape": (24, 32, 3), "names": ["height", "width", "channels"]}
numbers = {"dtype": "float32", "shape": (6,), "names": None}
features = {"observation.images.front": pixel, "observation.state": numbers, "action": numbers}
policy = make_policy(config, ds_meta=SimpleNamespace(features=features, stats={}))
before, after = make_pre_post_processors(config, pretrained_path=folder)
data = np.load(given)
batch = {
    "observation.images.front": torch.from_numpy(data["pictures"]).permute(0, 3, 1, 2) / 255,
    "observation.state": torch.from_numpy(data["states"]),
    "task": ["fold", "pour"],
}
policy.reset()
actions = [after(policy.select_action(before(batch))).numpy() for _ in range(4)]
left = torch.zeros(5, 6)
left[:3] = torch.from_numpy(data["states"][0]) + 1
single = {key: value[:1] for key, value in batch.items()}
policy.predict_action_chunk(before(single), inference_delay=2, prev_chunk_left_over=left)
np.savez(out, actions=actions, rtc=supports_rtc_inference(policy))
"""


class Counting:
    """Answers [3, 6]: the state plus the number of the step."""

    def __init__(self) -> None:
        self.requests = list[dict[str, Any]]()

    def metadata(self) -> dict[str, Any]:
        return {}

    def answer(self, request: Any) -> dict[str, Any]:
        self.requests.append(request)
        return {"actions": request["state"] + np.arange(3.0)[:, None]}


def test_lerobot_drives_by_a_policy_server(tmp_path):
    random = np.random.default_rng(0)
    pictures = random.integers(0, 255, (2, 24, 32, 3), dtype=np.uint8)
    states = random.normal(size=(2, 6)).astype(np.float32)
    np.savez(tmp_path / "given.npz", pictures=pictures, states=states)
    server = Counting()
    with serving(server) as listening:
        url = f"ws://127.0.0.1:{listening.port}"
        options = ["--state", 6, "--image", "front:24x32", "--rtc"]
        module = "import runpy, sys; runpy.run_module('lerobot_policy_vla_accel', run_name='__main__')"
        run("lerobot", module, url, tmp_path / "policy", *options, PYTHONPATH=str(ROOT))
        config = tmp_path / "policy" / "config.json"
        config.write_text(config.read_text().replace('"n_action_steps": 8', '"n_action_steps": 2'))
        run(
            "lerobot",
            DRIVE,
            tmp_path / "given.npz",
            tmp_path / "policy",
            tmp_path / "out.npz",
            PYTHONPATH=str(ROOT),
        )
    out = np.load(tmp_path / "out.npz")
    expected = [states + number for number in (0, 1, 0, 1)]  # two of three actions, then a new chunk
    np.testing.assert_array_equal(out["actions"], expected)
    assert out["rtc"]
    first, second, *_, continued = server.requests
    for request, picture, task in ((first, pictures[0], "fold"), (second, pictures[1], "pour")):
        assert np.array_equal(request["images"]["front"], picture) and request["prompt"] == task
        assert "delay" not in request
    assert len(server.requests) == 5 and continued["delay"] == 2
    np.testing.assert_array_equal(continued["action_prefix"], np.tile(states[0] + 1, (3, 1)))
