"""Interfaces of packages that not every robot needs, imported when a contract asks for them.

control_msgs comes with ros2_control, moveit_msgs with MoveIt; neither is on the Python package index. Who
uses a controller that needs one gets it, or one sentence that says what to install; nobody else must have
them.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def interface(package: str, kind: str, name: str, purpose: str) -> Any:
    """The class package.kind.name, such as control_msgs.action.FollowJointTrajectory.

    purpose: what needs it, the beginning of the sentence. Raises ValueError when it is not installed.
    """
    try:
        return getattr(importlib.import_module(f"{package}.{kind}"), name)
    except (ImportError, AttributeError) as error:
        debian = f"ros-{os.environ.get('ROS_DISTRO', '$ROS_DISTRO')}-{package.replace('_', '-')}"
        raise ValueError(
            f"{purpose} needs {package}/{kind}/{name}, which cannot be imported ({error}): "
            f"sudo apt install {debian}"
        ) from error
