"""A client of openpi's protocol that a robot can rely on: anybody's server, deadlines, and a new connection.

openpi's own client waits for ever, and is dead after the first error. Answers carry no number, so a late one
would be taken for the next: after a deadline, or an answer that nobody asked for, the connection is closed.
The metadata of a new connection is compared with the first: another model is not driven before somebody has
looked (`forget`). A connection that the server closed while nobody asked (vLLM-Omni does after 30 s) is made
anew without a word.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from websockets.exceptions import WebSocketException
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from vla_accel_ros.contract.sections.keys import OPENPI
from vla_accel_ros.wire.arrays import MOST_BYTES, pack, unpack, unpack_any
from vla_accel_ros.wire.dialects import DIALECT, ServerError, brief, check_error, last_line

OPEN_S, CLOSE_S = 2.0, 0.2
_LEAST_S = 1e-3  # 0 would be no limit


class PolicyClient:
    """Asks the server at `url` ("ws://host:8000"); ask from one thread. The first request connects it.

    token: sent as openpi's `Authorization: Api-Key TOKEN`. dialect: see wire/dialects.py. Attributes:
    metadata, None before the first connection; connections, how many were made.
    """

    def __init__(self, url: str, token: str = "", dialect: str = OPENPI) -> None:
        self.url, self._dialect = url, DIALECT[dialect]()
        self._headers = {"Authorization": f"Api-Key {token}"} if token else {}
        self._connection: ClientConnection | None = None
        self.metadata: dict[str, Any] | None = None
        self.connections = 0

    def infer(self, request: Mapping[str, Any], deadline_s: float) -> np.ndarray:
        """The actions, float32 [H, D], finite, in the server's units.

        Raises TimeoutError if they are not there within deadline_s, ConnectionError if there is no server or
        it went away, ServerError; and ValueError for what cannot be packed.
        """
        begun_s = time.monotonic()

        def remaining_s() -> float:
            return max(0.0, deadline_s - (time.monotonic() - begun_s))

        message = pack(self._dialect.wrap(request))
        try:
            connection = self._connection
            if connection is None or connection.state is not State.OPEN:
                connection = self._connect(remaining_s)
            answers = [self._exchange(connection, message, remaining_s())]
            while self._dialect.continues(answers):
                answers.append(self._exchange(connection, pack({}), remaining_s()))
            return self._dialect.actions(answers, request)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next request makes a new one. Another thread that waits for an answer
        gets ConnectionError."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError):  # it wakes the connection's reader, which a mere close does not
                connection.socket.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Accept whatever model the next connection has."""
        self.metadata = None

    def _connect(self, remaining_s: Callable[[], float]) -> ClientConnection:
        try:
            connection = self._connection = connect(
                self.url,
                additional_headers=self._headers,
                compression=None,
                max_size=MOST_BYTES,
                open_timeout=min(OPEN_S, remaining_s()),
                close_timeout=CLOSE_S,
                ping_interval=None,  # a server that computes may not answer; the deadline counts
            ).__enter__()
            first = connection.recv(min(OPEN_S, remaining_s()))
        except TimeoutError:
            raise TimeoutError(f"{self.url} did not open within the deadline") from None
        except (OSError, WebSocketException) as error:
            raise ConnectionError(f"{self.url}: {_brief(error)}") from error
        if isinstance(first, str):
            raise ServerError(f"{self.url} answers with {brief(first)!r} instead of its metadata")
        try:
            metadata = unpack(first)
        except ValueError as error:
            raise ServerError(f"{self.url} has no metadata of a policy server: {error}") from error
        if self.metadata is not None and pack(metadata) != pack(self.metadata):
            raise ServerError(
                f"{self.url} has another model than before ({_differences(self.metadata, metadata)}): "
                "deactivate and activate the node to use it"
            )
        self.metadata, self.connections = metadata, self.connections + 1
        if self._dialect.reset is not None:
            answer = self._answer(connection, pack(self._dialect.reset), remaining_s())
            if isinstance(answer, bytes):  # older vLLM-Omni servers confirm by a text
                check_error(unpack_any(answer))
        return connection

    def _answer(self, connection: ClientConnection, message: bytes, within_s: float) -> str | bytes:
        most_s = max(within_s, _LEAST_S)
        duration = struct.pack("@ll", int(most_s), int(most_s % 1.0 * 1e6))
        try:
            with suppress(TimeoutError):
                connection.recv(0.0)
                raise ServerError(f"{self.url} sent an answer that nobody asked for")
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, duration)
            connection.send(message)
            return connection.recv(within_s)
        except TimeoutError:
            raise TimeoutError(f"{self.url} did not answer within the deadline") from None
        except (OSError, WebSocketException) as error:
            if isinstance(error.__cause__, BlockingIOError):
                raise TimeoutError(f"{self.url} did not take the request within the deadline") from error
            raise ConnectionError(f"{self.url} went away: {_brief(error)}") from error

    def _exchange(self, connection: ClientConnection, message: bytes, within_s: float) -> Any:
        answer = self._answer(connection, message, within_s)
        if isinstance(answer, str):
            raise ServerError(f"the server reports: {last_line(answer) or 'nothing'}")
        try:
            return unpack_any(answer)
        except ValueError as error:
            raise ServerError(f"the answer cannot be read: {error}") from error


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    names = [name for name in {**before, **after} if str(before.get(name)) != str(after.get(name))]
    return brief(", ".join(f"{name}: {before.get(name)}, now {after.get(name)}" for name in names))


def _brief(error: Exception) -> str:
    return brief(str(error) or type(error).__name__)
