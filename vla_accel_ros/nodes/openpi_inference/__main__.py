"""Runs the node: `python -m vla_accel_ros.nodes.openpi_inference`."""

from __future__ import annotations

from vla_accel_ros.nodes.openpi_inference.node import main

if __name__ == "__main__":
    raise SystemExit(main())
