"""Runs the node: `python -m vla_accel_ros.nodes.fleet`."""

from __future__ import annotations

from vla_accel_ros.nodes.fleet.node import main

if __name__ == "__main__":
    raise SystemExit(main())
