"""What the tests need that is not installed, in one sentence; `colcon test` often is the first to ask."""

from __future__ import annotations

from importlib.util import find_spec

# Module -> what brings it. The kernels' compilers and transformers are left out: their tests are skipped.
FROM_PIP = ("hypothesis", "mcap", "mujoco", "pytest_timeout", "safetensors", "tokenizers", "torch")
FROM_ROS = ("rclpy", "sensor_msgs", "std_srvs", "vla_accel_msgs")


def sentence() -> str:
    """Empty when nothing is lacking."""
    pip = [name for name in FROM_PIP if find_spec(name) is None]
    ros = [name for name in FROM_ROS if find_spec(name) is None]
    parts = []
    if pip:
        names = ", ".join(pip)
        files = " ".join(f"-r requirements/{name}.txt" for name in ("robot", "demo", "test"))
        parts.append(f"{names}: pip install {files}")
    if ros:
        names = ", ".join(ros)
        parts.append(f"{names}: build msg/ with this package and source install/setup.bash, or run make test")
    return f"the tests lack {'; '.join(parts)}" if parts else ""
