"""A robot's contract as received: its text, and the text of the URDF that it names.

It comes from another machine, so no file of this machine is read: the URDF is the one that came with it. A
text takes milliseconds, so none is read twice, whichever robots send it, and the node that serves them reads
none in its own thread (`Reader`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import RobotDescription

_KEPT = 128
JOINING = threading.Lock()
"""Held by work for robots that join: one thread at most takes the interpreter from those that serve."""
_ROBOT = "\0"
"""Stands for the robot's name in a kept refusal."""


def contract_of(description: RobotDescription) -> Contract:
    """Read and check the contract. Raises ValueError, which names the robot, with all mistakes. Takes
    milliseconds for a new text."""
    description.check_lengths()
    with JOINING:
        read = _read(description.contract, description.urdf)
    if isinstance(read, str):
        raise ValueError(read.replace(_ROBOT, description.robot))
    return read


@lru_cache(_KEPT)
def _read(contract: str, urdf: str) -> Contract | str:
    """The contract, or why it is refused."""
    name = f"the contract of {_ROBOT}"
    try:
        return Contract.parse(contract, urdf, name)
    except ValueError as error:
        return str(error) if name in str(error) else f"{name}: {error}"


@dataclass(frozen=True)
class _Read:
    description: RobotDescription
    contract: Future[Contract]


class Reader:
    """Reads contracts in a thread. wake: called, in that thread, when one is read."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake, self._thread = wake, ThreadPoolExecutor(1, "contracts")
        self._reading: dict[str, _Read] = {}

    def read(self, description: RobotDescription) -> bool:
        """Read a robot's contract; the newest description of a robot counts. Returns whether it is next."""
        previous = self._reading.get(description.robot)
        if previous is None or previous.description != description:
            self.forget(description.robot)
            future = self._thread.submit(contract_of, description)
            self._reading[description.robot] = _Read(description, future)
            future.add_done_callback(lambda _: self._wake())
        return all(read.contract.done() for read in self._reading.values() if read.description != description)

    def finished(self) -> Iterator[tuple[RobotDescription, Contract | ValueError]]:
        """Yield, once, what was read since the last call: the contract, or why it is refused."""
        for robot, read in tuple(self._reading.items()):
            if not read.contract.done():
                continue
            del self._reading[robot]
            error = read.contract.exception()
            if error is not None and not isinstance(error, ValueError):
                raise error
            yield read.description, read.contract.result() if error is None else error

    def forget(self, robot: str) -> None:
        """A robot has gone, or has another description."""
        if (read := self._reading.pop(robot, None)) is not None:
            read.contract.cancel()

    def close(self) -> None:
        """End the thread after the text that it reads now."""
        self._thread.shutdown(cancel_futures=True)
