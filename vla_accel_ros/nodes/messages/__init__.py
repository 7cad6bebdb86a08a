"""Messages of a robot to this package's types and back: convert. Those of a fleet are in nodes.fleet."""
