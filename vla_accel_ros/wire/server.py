"""openpi's policy server: many clients at once on one engine.

A client gets the metadata, then an answer to each request in order. Requests are decoded and answered in
threads, so that the event loop only moves bytes: /healthz, pings and other clients never wait for a model,
and the engine sees the requests of all clients together. An error is sent as openpi does, as a text and the
close code 1011; the text is one sentence instead of a traceback.

A map {"batch": [request, ...]} is answered by {"batch": [answer, ...]}, computed together.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from vla_accel_ros.wire.arrays import MOST_BYTES, pack, unpack

MOST_BATCH = 32
"""Requests in one batch."""
LETTERS = 500
"""Of an error that a client gets."""
REASON = "Internal server error. Traceback included in previous frame."
SEND_S = 20.0
"""A client that does not take its answer for so long is left."""


class Answers(Protocol):
    """What is served. Both are called from any thread; `answer` raises ValueError for a wrong request."""

    def metadata(self) -> dict[str, Any]: ...
    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass
class Counts:
    """Numbers of a server since its start."""

    clients: int = 0
    answers: int = 0
    errors: int = 0
    refused: int = 0
    infer_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answered(self, infer_s: float) -> None:
        """One more answer, in so many seconds; from any thread."""
        with self.lock:
            self.answers += 1
            self.infer_s += infer_s

    def text(self) -> str:
        """As OpenMetrics."""
        return (
            "# TYPE vla_serve_clients gauge\n"
            f"vla_serve_clients {self.clients}\n"
            "# TYPE vla_serve_answers counter\n"
            f"vla_serve_answers_total {self.answers}\n"
            "# TYPE vla_serve_errors counter\n"
            f"vla_serve_errors_total {self.errors}\n"
            "# TYPE vla_serve_refused_clients counter\n"
            f"vla_serve_refused_clients_total {self.refused}\n"
            "# TYPE vla_serve_infer_seconds summary\n"
            f"vla_serve_infer_seconds_sum {self.infer_s:.6f}\n"
            f"vla_serve_infer_seconds_count {self.answers}\n"
            "# EOF\n"
        )


class _Connection(ServerConnection):
    """Leaves a client that sends pings and does not read: the answers to them would fill the memory."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > MOST_BYTES:
            self.transport.abort()


class PolicyServer:
    """Serves on a port until `close`. Make it and call all methods in one event loop.

    clients: most at once. together: most requests computed at once, by so many threads. token: what
    `Authorization: Api-Key TOKEN` must have, "" for anybody. tls: None for plain text.
    """

    def __init__(
        self,
        answers: Answers,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        clients: int = 32,
        together: int = 8,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._answers, self._address, self._clients, self._token = answers, (host, port), clients, token
        self._tls, self._most_bytes = tls, most_bytes
        self._metadata = pack(answers.metadata())
        self._threads = ThreadPoolExecutor(together, "answer")
        self._server: Server | None = None
        self.counts = Counts()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        host, port = self._address
        self._server = await serve(
            self._client,
            host,
            port,
            process_request=self._http,
            create_connection=_Connection,
            compression=None,
            max_size=self._most_bytes,
            max_queue=1,
            ssl=self._tls,
        )

    async def close(self) -> None:
        """Close all connections, as for a server that goes away, and wait for what is computed."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    def _http(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answer a plain GET, or let a websocket in."""
        if request.path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        key = request.headers.get("Authorization", "")
        if self._token and not hmac.compare_digest(key.encode(), f"Api-Key {self._token}".encode()):
            self.counts.refused += 1
            return connection.respond(HTTPStatus.UNAUTHORIZED, "give api_key the server's token\n")
        if request.path == "/metrics":
            return connection.respond(HTTPStatus.OK, self.counts.text())
        if self.counts.clients >= self._clients:
            self.counts.refused += 1
            return connection.respond(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{self._clients} clients are served already\n"
            )
        return None

    async def _client(self, connection: ServerConnection) -> None:
        self.counts.clients += 1
        loop, total_ms = asyncio.get_running_loop(), None
        try:
            await connection.send(self._metadata)
            async for message in connection:
                begun_s = time.perf_counter()
                answer = await self._answered(message, total_ms)
                expiry = loop.call_later(SEND_S, connection.transport.abort)
                try:
                    await connection.send(answer)
                finally:
                    expiry.cancel()
                if isinstance(answer, str):
                    await connection.close(1011, REASON)
                    return
                total_ms = 1e3 * (time.perf_counter() - begun_s)
        except ConnectionClosed:
            connection.transport.abort()
        finally:
            self.counts.clients -= 1

    async def _answered(self, message: str | bytes, total_ms: float | None) -> str | bytes:
        """An answer in the bytes of the wire, or an error as a text."""
        loop, begun_s = asyncio.get_running_loop(), time.perf_counter()
        try:
            answer = await loop.run_in_executor(self._threads, self._compute, message, total_ms, begun_s)
            if isinstance(answer, bytes):
                return answer
            results = await asyncio.gather(
                *(loop.run_in_executor(self._threads, self._answer, entry) for entry in answer),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            return self._packed({"batch": results}, total_ms, begun_s)
        except Exception as error:
            self.counts.errors += 1
            return (str(error) or type(error).__name__)[:LETTERS]

    def _compute(self, message: str | bytes, total_ms: float | None, begun_s: float) -> bytes | list[Any]:
        """In a thread: the answer to a request, in bytes, or the requests of a batch."""
        if isinstance(message, str):
            raise ValueError("the message is text: send a msgpack map as a binary frame")
        request = unpack(message, self._most_bytes)
        if "batch" not in request:
            return self._packed(dict(self._answers.answer(request)), total_ms, begun_s)
        requests = request["batch"]
        if not isinstance(requests, list) or not 0 < len(requests) <= MOST_BATCH:
            raise ValueError(f"batch holds 1 to {MOST_BATCH} requests")
        return requests

    def _answer(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict):
            raise ValueError(f"a request of the batch is {type(request).__name__}: send maps")
        return self._answers.answer(request)

    def _packed(self, answer: dict[str, Any], total_ms: float | None, begun_s: float) -> bytes:
        infer_s = time.perf_counter() - begun_s
        self.counts.answered(infer_s)
        timing = {"infer_ms": 1e3 * infer_s}
        if total_ms is not None:
            timing["prev_total_ms"] = total_ms
        return pack(answer | {"server_timing": timing})
