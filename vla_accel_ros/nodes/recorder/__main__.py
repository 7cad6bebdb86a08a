"""Runs the node: `python -m vla_accel_ros.nodes.recorder`."""

from __future__ import annotations

from vla_accel_ros.nodes.recorder.node import main

if __name__ == "__main__":
    raise SystemExit(main())
