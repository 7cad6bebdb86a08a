"""A fleet on one engine, without ROS.

serving: engines and robots. loads: requests that are sent to them. peers: other ways to serve the same model.
actors: replicas of Ray. simulated, scheduled: replicas and robots in simulated time.
"""
