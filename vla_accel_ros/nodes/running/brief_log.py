"""Logs of nodes whose lines are brief (nodes/brief.py)."""

from __future__ import annotations

import os
from typing import Any

from rclpy.impl import rcutils_logger
from rclpy.impl.logging_severity import LoggingSeverity

from vla_accel_ros.nodes.brief import brief

_MOST_LINES = 200
"""Limit for the lines of one log entry, such as a traceback."""


class BriefLogger(rcutils_logger.RcutilsLogger):
    """A node's logger whose lines are brief."""

    def log(self, message: str, severity: int | LoggingSeverity, *args: Any, **filters: Any) -> bool:
        lines = str(message).split("\n", _MOST_LINES)
        return super().log("\n".join(map(brief, lines)), severity, *args, **filters)


class BriefLogs:
    """Mixed into a node, before rclpy's class: its log is brief."""

    def get_logger(self) -> BriefLogger:
        return BriefLogger(super().get_logger().name)  # type: ignore[misc]


# rclpy binds the line that logs to one severity: it must look for the line that called this file.
rcutils_logger._internal_callers.append(os.path.realpath(__file__))
