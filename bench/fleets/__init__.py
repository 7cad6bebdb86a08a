"""A fleet on one engine, without ROS.

serving: engines and robots. loads: requests that are sent to them. peers: other ways to serve the same model.
processes: an engine in each of several processes.
"""
