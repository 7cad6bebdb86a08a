"""Serves documents that are made when somebody asks for them, each request in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOPBACK = "127.0.0.1"
MOST_PORT = 65_535


@contextmanager
def serving(
    documents: Mapping[str, tuple[str, Callable[[], str]]], port: int, address: str = LOOPBACK
) -> Iterator[int]:
    """Serve until the context ends; gives the port, a free one for 0.

    documents: path -> its content type and what makes its text. Raises ValueError if the port is none,
    OSError naming the port if it is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            kind, make = documents.get(self.path.partition("?")[0], ("text/plain", None))
            body = (f"there is {', '.join(documents)}" if make is None else make()).encode()
            self.send_response(404 if make is None else 200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing about each request."""

    if not 0 <= port <= MOST_PORT:
        raise ValueError(f"port {port} is none: give 1 to {MOST_PORT}, or 0 for a free one")
    try:
        server = ThreadingHTTPServer((address, port), Handler)
    except OSError as error:
        raise OSError(
            f"cannot serve on {address} port {port} ({error.strerror}): give another one"
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
