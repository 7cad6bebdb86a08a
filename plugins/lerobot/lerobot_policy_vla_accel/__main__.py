"""Writes the folder that LeRobot's --policy.path wants.

python -m lerobot_policy_vla_accel ws://gpu:8000 out/policy --state 6 --image front:480x640
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lerobot.configs import FeatureType, PolicyFeature
from lerobot.policies import make_pre_post_processors

from lerobot_policy_vla_accel.configuration_vla_accel import VlaAccelConfig

parser = argparse.ArgumentParser(prog="python -m lerobot_policy_vla_accel", description=__doc__)
parser.add_argument("url", help="of the policy server")
parser.add_argument("folder", type=Path)
parser.add_argument("--state", type=int, required=True, help="numbers of the state, and of an action")
parser.add_argument("--image", action="append", required=True, metavar="NAME:HEIGHTxWIDTH")
parser.add_argument("--keys", default="native")
parser.add_argument("--rtc", action="store_true", help="the server continues chunks, as vla serve does")
given = parser.parse_args()
inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (given.state,))}
for image in given.image:
    name, _, size = image.partition(":")
    try:
        height, width = map(int, size.split("x"))
    except ValueError:
        parser.error(f"--image {image}: write it as front:480x640")
    inputs[f"observation.images.{name}"] = PolicyFeature(FeatureType.VISUAL, (3, height, width))
config = VlaAccelConfig(
    url=given.url,
    keys=given.keys,
    rtc=given.rtc,
    input_features=inputs,
    output_features={"action": PolicyFeature(FeatureType.ACTION, (given.state,))},
)
given.folder.mkdir(parents=True, exist_ok=True)
config.save_pretrained(given.folder)
for steps in make_pre_post_processors(config):
    steps.save_pretrained(given.folder)
