"""The life of a node's process: start, spin, and a clean end on SIGINT or SIGTERM.

rclpy's own signal handlers shut the context down first, after which nothing can be published; a robot must
be told to stop before that. So the first signal only ends the spinning, the node goes through its shutdown
transition with publishers that still work, and then the context ends. What is not over within PATIENCE_S (a
model that is being loaded cannot be interrupted) is broken off, and so it is by a signal more than a second
later (sooner ones are the same Ctrl-C, which a launch system passes on once more). The
executor is single-threaded: the multi-threaded one loses a quarter of 30 Hz images, and the events executor
of the Python wheels never returns.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from vla_accel_ros.nodes.lifecycle import ManagedNode

PATIENCE_S = 1.8
_SAME_SIGNAL_S = 1.0


def run(make_node: Callable[[], Node], args: Sequence[str] | None = None) -> int:
    """Run one node until a signal comes; returns the exit status.

    make_node may raise ValueError or OSError for parameters that cannot work; that is one line on stderr
    and status 2.
    """
    ending: Future = Future()
    ended = threading.Event()
    _end_by_signal(ending, ended)
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = make_node()
    except (ValueError, OSError, rclpy.exceptions.ParameterException) as error:
        print(f"cannot start: {error}", file=sys.stderr)
        rclpy.shutdown()
        return 2
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        executor.spin_until_future_complete(ending)
    finally:
        if isinstance(node, ManagedNode):
            node.end()
        executor.remove_node(node)
        node.destroy_node()
        executor.shutdown()
        rclpy.shutdown()
        ended.set()
    return 0


def _end_by_signal(ending: Future, ended: threading.Event) -> None:
    """Complete the future when SIGINT or SIGTERM arrives, and end the process unless it has ended soon after.

    Python runs its handlers only between bytecodes of the main thread, which waits inside the middleware;
    the wake-up descriptor is written at once, and a thread that reads it completes the future, which wakes
    the executor.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def listen() -> None:
        (number,) = os.read(reading, 1)
        first = time.monotonic()
        ending.set_result(None)
        while (left_s := first + PATIENCE_S - time.monotonic()) > 0.0:
            if select.select([reading], [], [], left_s)[0]:
                os.read(reading, 1)
                if time.monotonic() - first > _SAME_SIGNAL_S:
                    os._exit(128 + number)
        if not ended.is_set():
            print(f"broken off: the node was still busy {PATIENCE_S} s after the signal", file=sys.stderr)
            sys.stderr.flush()
            os._exit(128 + number)

    threading.Thread(target=listen, name="signals", daemon=True).start()
