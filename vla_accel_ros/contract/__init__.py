"""The contract between a robot and a policy, one YAML file per robot, and the checks against it.

contract: the file as an object; parts: its streams, cameras, joints, controllers and times, which readers
reads; consistency: whether they fit each other; base: a mobile one; force: its force sensors; teleop: what a
person commands it by; hands: hands that a policy knows by their pose; keys: those of a policy server's
requests; fields and bounded_yaml: how YAML is read; urdf: joint limits from a URDF; kinematics: where joints
lead its links; rosetta: to and from rosetta's.
model_check, controller_check and graph_check compare a contract with a model, with controllers' parameters
and with a live graph; each result is a finding (findings). readings: what a policy's actions are by their
statistics.
"""
