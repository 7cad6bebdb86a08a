"""The life of a node's process: start, spin, and a clean end.

rclpy's own signal handlers shut the context down first, after which nothing can be published; a robot must be
told to stop before that. So the event that ends the process (nodes/running/shutdown.py) only ends the
spinning. The node then goes through its shutdown transition with publishers that still work, and the context
ends last. The executor (nodes/running/executor.py) is single-threaded: rclpy's multi-threaded one loses a
quarter of 30 Hz images, and the events executor of the Python wheels never returns.

Other threads wait for a GPU, a sensor or a camera; vla_accel_ros/interpreter.py says what they need from
Python.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Sequence

import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from vla_accel_ros.interpreter import SWITCH_S, free_unloaded, keep_loaded
from vla_accel_ros.nodes.running import shutdown as ending
from vla_accel_ros.nodes.running.executor import DirectExecutor
from vla_accel_ros.nodes.running.lifecycle import ManagedNode


def run(make_node: Callable[[], Node], args: Sequence[str] | None = None) -> int:
    """Run one node until something ends it; returns the exit status.

    The status is 0 for a signal and for a launcher that has gone, 1 for a fault: an exception in a callback
    or a thread, or a middleware that has lost this process. State that a node keeps over a crash it also
    keeps over a fault. If ROS refuses the arguments or the environment, or make_node raises ValueError or
    OSError for parameters that cannot work, one line is printed on stderr and the status is 2.
    """
    end = ending.begin()
    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:
        print(f"cannot start: {_refused(error)}", file=sys.stderr)
        return 2
    try:
        node = make_node()
    except (ValueError, OSError, rclpy.exceptions.ParameterException) as error:
        print(f"cannot start: {error}", file=sys.stderr)
        rclpy.shutdown()
        return 2
    sys.setswitchinterval(SWITCH_S)
    if isinstance(node, ManagedNode):
        node.on_configured, node.free_memory = keep_loaded, free_unloaded
    executor = DirectExecutor()
    executor.add_node(node)
    (node.get_logger().info if executor.direct else node.get_logger().warning)(
        f"executor: {executor.description}"
    )
    end.watch_ports()
    try:
        executor.spin_until_future_complete(end.future)
    except BaseException as error:  # also a native library's panic and SystemExit: nothing else runs the node
        end.fail("a callback failed", error)
    end.begun.set()
    try:
        if isinstance(node, ManagedNode):
            node.end(clean=end.status == 0)
        executor.remove_node(node)
        node.destroy_node()
        executor.shutdown()
        rclpy.shutdown()
    except BaseException as error:
        end.fail("the end failed", error)
    gc.unfreeze()  # objects frozen by keep_loaded hold the middleware, whose shared memory must be removed
    end.finish()
    _leave_terminal()
    return end.status


def _refused(error: RuntimeError) -> str:
    """Why ROS does not start, without the lines of its source: a remapping, parameter file or log level that
    is wrong, an unknown argument, or no folder for logs."""
    reason = re.sub(r", at \S+:\d+", "", " ".join(str(error).split()))
    fix = "; set HOME or ROS_LOG_DIR" if "logging directory" in reason else ""
    return f"ROS refuses the arguments or the environment: {reason}{fix}"


def _leave_terminal() -> None:
    """Flush the output streams; a terminal that is gone does not change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
