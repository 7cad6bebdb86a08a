"""Ends a node's process: on a signal, a launcher that has gone, a fault, or lost ports.

Each of these completes one future, on which the executor stops spinning; the node then ends as usual, with a
smooth stop first. The process is killed if that has not begun within PATIENCE_S (the loading of a model
cannot be interrupted), or if it takes longer than LONGEST_S, as on a busy machine (a launch system sends a
second signal after 5 s). Another signal more than a second later also kills it (an earlier one is the same
Ctrl-C, which a launch system passes on once more). A thread that dies ends the process with status 1 and the
reason on stderr: a node that looks alive and does nothing would not be restarted. A native call that holds
the interpreter and does not return holds up these threads, too: such a process ends LAST_S later with status
1, after writing where every thread is to stderr. So does one whose interpreter takes longer than LEAVES_S to
end after its node.

Python runs its signal handlers only between bytecodes of the main thread, which waits inside the middleware.
The wake-up descriptor is written at once, and a thread that reads it completes the future.

A program that looks at a robot and ends uses only `leave_graph`.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress

from rclpy.context import Context
from rclpy.node import Node
from rclpy.task import Future

from vla_accel_ros.nodes.running.environment import LAUNCHER, is_running, lost_ports

PATIENCE_S = 1.8
LONGEST_S = 4.5
LAST_S = 1.0
LEAVES_S = 20.0
"""Time that a program's own node has to leave the graph, and the interpreter of a node that has ended."""
_SAME_SIGNAL_S = 1.0
_LOOK_S = 0.2
_FAULT = 0
"""Written to the wake-up descriptor for a fault; signals are written as their numbers."""
_PORTS_S = 1.0


class Ending:
    """The end of this process; one per process. future: completed when the end should begin. begun: set by
    the code that reacts to it. over: set when everything has ended. status: exit status."""

    def __init__(self) -> None:
        self.future: Future = Future()
        self.status = 0
        self.begun, self.over = threading.Event(), threading.Event()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            self._numbers.append(signal.SIGHUP)
        for number in self._numbers:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        threading.excepthook = self._on_thread
        threading.Thread(target=self._listen, name="signals", daemon=True).start()
        launcher = os.environ.pop(LAUNCHER, "")  # child processes get this process as their launcher
        if launcher:
            threading.Thread(target=self._look, args=(launcher,), name="launcher", daemon=True).start()

    def finish(self) -> None:
        """Everything has ended except the interpreter, which restores the signals' defaults: ignore them, so
        that a late Ctrl-C does not change the status of a clean end. It has LEAVES_S to end: it waits for
        threads, and takes down what is left of the middleware. Call it from the main thread."""
        self.over.set()
        _watch(LEAVES_S)
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)

    def watch_ports(self) -> None:
        """Check once a second, in its own thread, whether ports are lost, and end the process then.

        Fast DDS creates a port again when a sender has found it broken, so a port that is lost for only one
        check does not count.
        """
        threading.Thread(target=self._watch_ports, name="ports", daemon=True).start()

    def fail(self, reason: str, error: BaseException | None) -> None:
        """End the process with status 1; may be called from any thread."""
        self.status = 1
        trace = "" if error is None else "".join(traceback.format_exception(error))
        _say(f"{trace}{reason}: this process ends")
        with suppress(BlockingIOError):  # full: the end has begun already
            os.write(self._writing, bytes([_FAULT]))

    def _on_thread(self, died: threading.ExceptHookArgs) -> None:
        name = died.thread.name if died.thread is not None else "of no name"
        self.fail(f"the thread {name!r} died", died.exc_value or died.exc_type())

    def _look(self, launcher: str) -> None:
        while is_running(launcher):
            time.sleep(_LOOK_S)
        _say("the process that started this node has ended, so the node ends too")
        os.write(self._writing, bytes([signal.SIGTERM]))

    def _watch_ports(self) -> None:
        lost_before: frozenset[int] = frozenset()
        while not self.over.wait(_PORTS_S):
            lost = lost_ports()
            if confirmed := lost & lost_before:
                ports = ", ".join(map(str, sorted(confirmed)))
                self.fail(
                    f"Fast DDS has lost this process's shared memory (port {ports}: another process was "
                    "killed while both used it), so nothing from this machine arrives",
                    None,
                )
                return
            lost_before = lost

    def _listen(self) -> None:
        (number,) = os.read(self._reading, 1)
        first = time.monotonic()
        _watch(LONGEST_S + LAST_S)
        self.future.set_result(None)
        self._wait(number, first, PATIENCE_S)
        if not self.begun.is_set():
            _say(f"killed: the node was still busy {PATIENCE_S} s after its end was due")
            os._exit(self.status or 128 + number)
        self._wait(number, first, LONGEST_S)
        if not self.over.is_set():
            _say(f"killed: the node was still ending {LONGEST_S} s after its end was due")
            os._exit(self.status or 128 + number)

    def _wait(self, number: int, first: float, seconds: float) -> None:
        """Wait until `seconds` after the first signal; a later signal kills the process."""
        while (left_s := first + seconds - time.monotonic()) > 0.0:
            if select.select([self._reading], [], [], left_s)[0]:
                (number_again,) = os.read(self._reading, 1)
                if number_again and time.monotonic() - first > _SAME_SIGNAL_S:
                    os._exit(self.status or 128 + number)


_ending: Ending | None = None


def begin() -> Ending:
    """Make signals, the launcher and faults end this process. Call it from the main thread."""
    global _ending
    _ending = Ending()
    return _ending


def fatal(reason: str, error: BaseException | None = None) -> None:
    """End this process because of an unrecoverable error. May be called from any thread; returns at once."""
    if _ending is None:
        raise RuntimeError(reason) from error  # `begin` was not called: the caller's own process
    _ending.fail(reason, error)


def leave_graph(node: Node, context: Context) -> None:
    """Destroy the only node of a context, and end the context. If that takes longer than LEAVES_S, as in a
    native call that holds the interpreter, the process ends with status 1, after writing where every thread
    is to stderr."""
    _watch(LEAVES_S)
    try:
        node.destroy_node()
        context.try_shutdown()
    finally:
        faulthandler.cancel_dump_traceback_later()


def _watch(seconds: float) -> None:
    """End the process then, from a thread that does not need the interpreter."""
    with suppress(OSError, RuntimeError, ValueError):  # there is no stderr
        faulthandler.dump_traceback_later(seconds, exit=True)


def _say(sentence: str) -> None:
    # The process that started the node may have closed the other end of stderr.
    with suppress(OSError, ValueError):
        print(sentence, file=sys.stderr, flush=True)
