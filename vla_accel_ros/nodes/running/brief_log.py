"""Logs of nodes whose lines are brief (nodes/brief.py).

rclpy looks through all loaded modules, on the disk, for the file of the line that logs: milliseconds in a
process that has loaded a model, in the thread that serves robots.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rclpy.impl import rcutils_logger
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.impl.logging_severity import LoggingSeverity

from vla_accel_ros.nodes.brief import brief

_INTERNAL = {__file__, rcutils_logger.__file__}
_MOST_LINES = 200
"""Limit for the lines of one log entry, such as a traceback."""


class BriefLogger(rcutils_logger.RcutilsLogger):
    """A node's logger whose lines are brief."""

    def log(self, message: str, severity: int | LoggingSeverity, *args: Any, **filters: Any) -> bool:
        lines = str(message).split("\n", _MOST_LINES)
        text = "\n".join(map(brief, lines))
        if args or filters:
            return super().log(text, severity, *args, **filters)
        if not self.is_enabled_for(severity):
            return False
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename in _INTERNAL:
            frame = frame.f_back
        code, line = frame.f_code, frame.f_lineno
        rclpy_implementation.rclpy_logging_rcutils_log(
            LoggingSeverity(severity), self.name, text, code.co_name, code.co_filename, line
        )
        return True


class BriefLogs:
    """Mixed into a node, before rclpy's class: its log is brief."""

    def get_logger(self) -> BriefLogger:
        return BriefLogger(super().get_logger().name)  # type: ignore[misc]


# rclpy binds the line that logs to one severity: it must look for the line that called this file.
rcutils_logger._internal_callers.append(os.path.realpath(__file__))
