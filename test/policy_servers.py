"""Servers on loopback, each in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.sync.server import ServerConnection, serve

from vla_accel_ros.wire.server import Answers, PolicyServer

WAIT_S = 30.0


@contextmanager
def serving(answers: Answers, port: int = 0, **options: Any) -> Iterator[PolicyServer]:
    """Our server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), loop).result(WAIT_S)

    async def make() -> PolicyServer:
        return PolicyServer(answers, port=port, **options)

    server = call(make)
    call(server.start)
    try:
        yield server
    finally:
        call(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def other_server(handle: Callable[[ServerConnection], None]) -> Iterator[str]:
    """Anybody's server, which does what `handle` does with each connection; its address."""
    with serve(handle, "127.0.0.1", 0, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
    thread.join()
