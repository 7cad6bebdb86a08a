"""Why a node's process ends, and that it does: a signal, a launcher that has gone, a fault, lost ports.

Each completes one future, on which the executor ends its spinning; the node then comes to its end as always,
a smooth stop first. What has not begun to end within PATIENCE_S (a model that is being loaded cannot be
interrupted) is broken off; so is an end that takes longer than LONGEST_S, as on a busy machine (a launch
system asks once more after 5 s), and one that is asked for again by a signal more than a second later (sooner
ones are the same Ctrl-C, which a launch system passes on once more). A thread that dies takes the process
with it, with status 1 and the reason on stderr: a node that looks alive and does nothing would not be started
again.

Python runs its signal handlers only between bytecodes of the main thread, which waits inside the middleware;
the wake-up descriptor is written at once, and a thread that reads it completes the future.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress

from rclpy.task import Future

from vla_accel_ros.nodes.environment import LAUNCHER, is_running, lost_ports

PATIENCE_S = 1.8
LONGEST_S = 4.5
_SAME_SIGNAL_S = 1.0
_LOOK_S = 0.2
_FAULT = 0
"""On the wake-up descriptor, where signals are written by their numbers."""
_PORTS_S = 1.0


class Ending:
    """The end of this process; one for each. future: completed when it is to begin. begun: set by whoever
    heard of it. over: set when all is over. status: to exit with."""

    def __init__(self) -> None:
        self.future: Future = Future()
        self.status = 0
        self.begun, self.over = threading.Event(), threading.Event()
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
            self._numbers.append(signal.SIGHUP)
        for number in self._numbers:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        threading.excepthook = self._on_thread
        threading.Thread(target=self._listen, name="signals", daemon=True).start()
        launcher = os.environ.pop(LAUNCHER, "")  # a process that this one starts has this one as its launcher
        if launcher:
            threading.Thread(target=self._look, args=(launcher,), name="launcher", daemon=True).start()

    def finish(self) -> None:
        """All is over but the interpreter's own end, in which signals have their defaults again: a Ctrl-C
        that is passed on late would make another status of a clean end. From the main thread."""
        self.over.set()
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)

    def watch_ports(self) -> None:
        """Look once a second, in a thread of its own, whether ports are lost, and end then.

        Fast DDS makes a port again of its own accord when a sender has found it broken: what is lost for one
        look only does not count.
        """
        threading.Thread(target=self._watch_ports, name="ports", daemon=True).start()

    def fail(self, reason: str, error: BaseException | None) -> None:
        """End with status 1, from any thread."""
        self.status = 1
        trace = "" if error is None else "".join(traceback.format_exception(error))
        _say(f"{trace}{reason}: this process ends")
        with suppress(BlockingIOError):  # full of others
            os.write(self._writing, bytes([_FAULT]))

    def _on_thread(self, died: threading.ExceptHookArgs) -> None:
        name = died.thread.name if died.thread is not None else "of no name"
        self.fail(f"the thread {name!r} died", died.exc_value or died.exc_type())

    def _look(self, launcher: str) -> None:
        while is_running(launcher):
            time.sleep(_LOOK_S)
        _say("what started this node has ended, and so does the node")
        os.write(self._writing, bytes([signal.SIGTERM]))

    def _watch_ports(self) -> None:
        before: frozenset[int] = frozenset()
        while not self.over.wait(_PORTS_S):
            lost = lost_ports()
            if both := lost & before:
                ports = ", ".join(map(str, sorted(both)))
                self.fail(
                    f"Fast DDS has lost this process's shared memory (port {ports}: another process was "
                    "killed while both used it), so that nothing of this machine arrives",
                    None,
                )
                return
            before = lost

    def _listen(self) -> None:
        (number,) = os.read(self._reading, 1)
        first = time.monotonic()
        self.future.set_result(None)
        self._wait(number, first, PATIENCE_S)
        if not self.begun.is_set():
            _say(f"broken off: the node was still busy {PATIENCE_S} s after it was to end")
            os._exit(self.status or 128 + number)
        self._wait(number, first, LONGEST_S)
        if not self.over.is_set():
            _say(f"broken off: the node was still ending {LONGEST_S} s after it was to end")
            os._exit(self.status or 128 + number)

    def _wait(self, number: int, first: float, seconds: float) -> None:
        """Until so long after the first signal; one that comes again breaks it off."""
        while (left_s := first + seconds - time.monotonic()) > 0.0:
            if select.select([self._reading], [], [], left_s)[0]:
                (again,) = os.read(self._reading, 1)
                if again and time.monotonic() - first > _SAME_SIGNAL_S:
                    os._exit(self.status or 128 + number)


_ending: Ending | None = None


def begin() -> Ending:
    """Have signals, the launcher and faults end this process. Only from the main thread."""
    global _ending
    _ending = Ending()
    return _ending


def fatal(reason: str, error: BaseException | None = None) -> None:
    """End this process because of what cannot be mended in it. From any thread; returns at once."""
    if _ending is None:
        raise RuntimeError(reason) from error  # in nobody's process but the caller's
    _ending.fail(reason, error)


def _say(sentence: str) -> None:
    # What started the node may have taken the other end of stderr with it.
    with suppress(OSError, ValueError):
        print(sentence, file=sys.stderr, flush=True)
