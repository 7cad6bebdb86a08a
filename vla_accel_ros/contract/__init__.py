"""The contract between a robot and a policy, one YAML file per robot, and the checks against it.

contract: the file as an object; parts: its streams, cameras, joints, controllers and times, which sections
reads from what files finds in YAML and URDF; consistency: whether they fit each other; rosetta: to and from
rosetta's; checks: against a model, controllers and a live graph.
"""
