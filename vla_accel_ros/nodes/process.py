"""The life of a node's process: start, spin, and a clean end.

rclpy's own signal handlers shut the context down first, after which nothing can be published; a robot must
be told to stop before that. So what ends the process (nodes/shutdown.py) only ends the spinning, the node
goes through its shutdown transition with publishers that still work, and then the context ends. The executor
is single-threaded: the multi-threaded one loses a quarter of 30 Hz images, and the events executor of the
Python wheels never returns.

Beside it run threads that wait for a GPU, a sensor or a camera; vla_accel_ros/interpreter.py says what they
need of Python.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.nodes import shutdown as ending
from vla_accel_ros.nodes.lifecycle import ManagedNode


def run(make_node: Callable[[], Node], args: Sequence[str] | None = None) -> int:
    """Run one node until something ends it; returns the exit status.

    0 for a signal and for a launcher that has gone, 1 for a fault: whatever a callback or a thread raised, or
    a middleware that has lost this process. What a node keeps over a crash it keeps over a fault.
    make_node may raise ValueError or OSError for parameters that cannot work; that is one line on stderr
    and status 2.
    """
    end = ending.begin()
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = make_node()
    except (ValueError, OSError, rclpy.exceptions.ParameterException) as error:
        print(f"cannot start: {error}", file=sys.stderr)
        rclpy.shutdown()
        return 2
    sys.setswitchinterval(SWITCH_S)
    if isinstance(node, ManagedNode):
        node.on_configured, node.on_cleaned_up = keep_loaded, gc.unfreeze
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    end.watch_ports()
    try:
        executor.spin_until_future_complete(end.future)
    except BaseException as error:  # a native library's panic and SystemExit too: nothing else runs the node
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
    gc.unfreeze()  # what keep_loaded set aside holds the middleware, whose shared memory must not stay behind
    end.finish()
    _leave_terminal()
    return end.status


def _leave_terminal() -> None:
    """Write what is left to say; a terminal that is gone is no reason to end with another status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
