"""Load a policy, and ask it for a chunk of actions: README's lines, run on a CPU with the bundled policy.

python examples/act.py [FOLDER of a checkpoint]
"""

from __future__ import annotations

import sys

import numpy as np

from vla_accel_ros import Contract, Engine, Observation, load_policy
from vla_accel_ros.nodes.running.environment import demo_contract, demo_model


def main() -> None:
    # A policy is a network with its tokenizer and the statistics of its training.
    policy = load_policy(sys.argv[1] if len(sys.argv) > 1 else demo_model(), device="cpu")
    # The contract says what the robot is: which camera is which image of the policy, and the units of joints.
    contract = Contract.load(demo_contract())
    engine = Engine(policy, step_dt_s=contract.chunk.step_dt_s)

    # One picture for each camera, as RGB bytes of any size, and the joints in the policy's own units.
    images = {camera.image: np.zeros((240, 320, 3), np.uint8) for camera in contract.cameras}
    middle = [(joint.lower + joint.upper) / 2 for joint in contract.joints]
    state = contract.to_policy(middle).astype(np.float32)
    observation = Observation(images, state, "reach the red block", stamp_ns=0)

    # `observe` computes everything that depends on the picture and the words, once. Whatever is asked about
    # this moment reuses it: a chunk, a second chunk from other noise, or an answer in words (`engine.ask`).
    with engine.observe(observation) as prefix:
        chunk = engine.act(prefix)

    # A chunk is float32 [H, D]: H targets for D joints, one every step_dt_s; here in the units of ROS.
    targets = contract.to_robot(chunk.actions)
    print(f"{len(targets)} actions, one every {chunk.step_dt_s:.3f} s; the first target in rad:")
    for name, target in zip(contract.joint_names, targets[0], strict=True):
        print(f"  {name:16}{target:+.3f}")


if __name__ == "__main__":
    main()
