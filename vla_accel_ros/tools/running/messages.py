"""Builds vla_accel_msgs where a demo is started from an installed wheel.

Generated messages fit one Python and one ROS distribution, so no wheel can bring them. The wheel brings their
sources, and scripts/environment.py, which builds them for a checkout, builds them here, into the environment
that runs. A workspace and a checkout have them already.
"""

from __future__ import annotations

import sys
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vla_accel_ros.nodes.running.environment import share_path
from vla_accel_ros.tools.options import say


def provide_messages() -> None:
    """Build vla_accel_msgs unless it is there.

    Raises RuntimeError if there is no ROS 2; exits with one sentence if something that builds is absent.
    """
    if find_spec("vla_accel_msgs") is not None:
        return
    if find_spec("rclpy") is None or find_spec("colcon_core") is None:
        raise RuntimeError(
            "there is no ROS 2 here: source a workspace in which vla_accel_msgs is built, or "
            "pip install 'vla_accel_ros[demo]' into an environment of its own"
        )
    sys.path.append(str(share_path("scripts/environment.py").parent))
    environment: Any = import_module("environment")
    environment.VENV, environment.PYTHON = Path(sys.prefix), Path(sys.executable)
    say("building vla_accel_msgs, once: a minute or two")
    environment.check_machine()
    environment.relocate_exports()
    environment.build_interfaces("messages", "msg")
    import_module("opengl").provide(environment.VENV)
    invalidate_caches()
