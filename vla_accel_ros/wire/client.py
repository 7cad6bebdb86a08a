"""A client of openpi's protocol that a robot can rely on: anybody's server, deadlines, and a new connection.

openpi's own client waits for ever, and is dead after the first error. Answers carry no number, so a late one
would be taken for the next: after a deadline the connection is closed. The metadata of a new connection is
compared with the first: another model is not driven before somebody has looked (`forget`).

Servers differ in what they answer (dialects): openpi, pi.cpp, vLLM-Omni and SGLang a map or a bare array;
StarVLA an envelope; GalaxeaVLA one step after another, asked for by empty maps, which become a chunk here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from vla_accel_ros.wire.arrays import MOST_BYTES, pack, unpack, unpack_any

OPENPI, STARVLA, GALAXEA = DIALECTS = ("openpi", "starvla", "galaxea")
OPEN_S = 2.0
LETTERS = 300
MOST_ACTIONS, MOST_DIMS = 1024, 256


class ServerError(RuntimeError):
    """The server answered with an error, or with what cannot be used; a sentence."""


class PolicyClient:
    """Asks the server at `url` ("ws://host:8000"); ask from one thread. The first request connects it.

    token: sent as openpi's `Authorization: Api-Key TOKEN`. Attributes: metadata, None before the first
    connection; connections, how many were made.
    """

    def __init__(self, url: str, token: str = "", dialect: str = OPENPI) -> None:
        if dialect not in DIALECTS:
            raise ValueError(f"the dialect {dialect!r} is unknown: give {', '.join(DIALECTS)}")
        self.url, self._dialect = url, dialect
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

        message = pack(self._wrapped(request))
        try:
            connection = self._connection or self._connect(remaining_s())
            answer = self._exchange(connection, message, remaining_s())
            if self._dialect == GALAXEA:
                return self._steps(connection, answer, remaining_s)
            return actions_of(answer)
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

    def _wrapped(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._dialect != STARVLA:
            return request
        payload = {key: value for key, value in request.items() if key == "unnorm_key"}
        example = {key: value for key, value in request.items() if key != "unnorm_key"}
        return {"type": "infer", "request_id": "0", "payload": {"examples": [example], **payload}}

    def _connect(self, within_s: float) -> ClientConnection:
        try:
            connection = self._connection = connect(
                self.url,
                additional_headers=self._headers,
                compression=None,
                max_size=MOST_BYTES,
                open_timeout=min(OPEN_S, within_s),
                ping_interval=None,  # a server that computes may not answer; the deadline counts
            ).__enter__()
            first = connection.recv(min(OPEN_S, within_s))
        except TimeoutError:
            raise
        except (OSError, WebSocketException) as error:
            raise ConnectionError(f"{self.url}: {_brief(error)}") from error
        if isinstance(first, str):
            raise ServerError(f"{self.url} answers with {first[:LETTERS]!r} instead of its metadata")
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
        return connection

    def _exchange(self, connection: ClientConnection, message: bytes, within_s: float) -> Any:
        try:
            connection.send(message)
            answer = connection.recv(within_s)
        except TimeoutError:
            raise TimeoutError(f"{self.url} did not answer within the deadline") from None
        except (OSError, WebSocketException) as error:
            raise ConnectionError(f"{self.url} went away: {_brief(error)}") from error
        if isinstance(answer, str):
            raise ServerError(f"the server reports: {_last_line(answer)}")
        try:
            return unpack_any(answer)
        except ValueError as error:
            raise ServerError(f"the answer cannot be read: {error}") from error

    def _steps(
        self, connection: ClientConnection, answer: Any, remaining_s: Callable[[], float]
    ) -> np.ndarray:
        steps: list[np.ndarray] = []
        while len(steps) < MOST_ACTIONS:
            _check_error(answer)
            action = answer.get("action") if isinstance(answer, dict) else None
            if not isinstance(action, dict) or not action:
                raise ServerError("the answer has no action")
            steps.append(np.concatenate([_numbers(part).ravel() for part in action.values()]))
            if answer.get("need_obs"):
                break
            answer = self._exchange(connection, pack({}), remaining_s())
        if len({len(step) for step in steps}) != 1:
            raise ServerError("the steps of a chunk have different numbers of joints")
        return _checked(np.stack(steps))


def actions_of(answer: Any) -> np.ndarray:
    """float32 [H, D] from an answer of any dialect of one answer. Raises ServerError."""
    _check_error(answer)
    if isinstance(answer, dict):
        data = answer.get("data")
        if isinstance(data, dict) and "actions" in data:  # StarVLA: one of each example
            batch = _numbers(data["actions"])
            if batch.ndim != 3 or len(batch) != 1:
                raise ServerError(f"the answer has actions of shape {list(batch.shape)}, not [1, H, D]")
            return _checked(batch[0])
        values = [answer[name] for name in ("actions", "action_chunk") if name in answer]
        arrays = [value for value in answer.values() if isinstance(value, np.ndarray) and value.ndim == 2]
        if not values and len(arrays) == 1:  # vLLM-Omni: by the name of the output
            values = arrays
        if not values:
            raise ServerError(
                f"the answer has no actions, but {', '.join(map(str, list(answer)[:8])) or 'nothing'}"
            )
        answer = values[0]
    return _checked(_numbers(answer))


def _check_error(answer: Any) -> None:
    if not isinstance(answer, dict):
        return
    error = answer.get("error")
    if answer.get("type") == "error" or error or answer.get("ok") is False:
        message = error.get("message", error) if isinstance(error, dict) else error or answer.get("message")
        raise ServerError(f"the server reports: {str(message or 'an error')[:LETTERS]}")


def _numbers(value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ServerError("the actions are no array") from error
    if array.dtype.kind not in "iuf":
        raise ServerError(f"the actions are {array.dtype}, not numbers")
    return array


def _checked(actions: np.ndarray) -> np.ndarray:
    if actions.ndim != 2 or not 0 < len(actions) <= MOST_ACTIONS or not 0 < actions.shape[1] <= MOST_DIMS:
        raise ServerError(f"the actions have the shape {list(actions.shape)}, not [H, D]")
    with np.errstate(over="ignore"):
        actions = actions.astype(np.float32)
    if not np.isfinite(actions).all():
        raise ServerError("the actions are not finite")
    return actions


def _last_line(text: str) -> str:
    """Of a traceback, what it ends with."""
    return (text.strip().splitlines() or ["nothing"])[-1][:LETTERS]


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    names = [name for name in {**before, **after} if str(before.get(name)) != str(after.get(name))]
    return ", ".join(f"{name}: {before.get(name)}, now {after.get(name)}" for name in names)[:LETTERS]


def _brief(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:LETTERS]
