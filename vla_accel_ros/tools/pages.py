"""Serves documents that are made when somebody asks for them, each request in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

LOOPBACK = "127.0.0.1"
MOST_PORT = 65_535

Make = Callable[[Mapping[str, str]], str | bytes]
"""Makes a document from the query of its address. Raises ValueError or OverflowError if that is wrong."""


def server_of(
    documents: Mapping[str, tuple[str, Make]], port: int, address: str = LOOPBACK
) -> ThreadingHTTPServer:
    """A server to be run with serve_forever, port 0 for a free one.

    documents: path -> its content type and what makes it. Raises ValueError if the port is none, OSError
    naming the port if it is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the browser to acknowledge its headers
        timeout = 10.0

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
            if address == LOOPBACK and host not in (LOOPBACK, "localhost"):  # another site's name leads here
                self._send(403, "text/plain", f"ask for {LOOPBACK} or localhost")
            elif url.path not in documents:
                self._send(404, "text/plain", f"there is {', '.join(documents)}")
            else:
                kind, make = documents[url.path]
                try:
                    body = make(dict(parse_qsl(url.query, keep_blank_values=True)))
                except (ValueError, OverflowError) as error:
                    self._send(400, "text/plain", str(error))
                else:
                    self._send(200, kind, body)

        def _send(self, status: int, kind: str, body: str | bytes) -> None:
            data = body if isinstance(body, bytes) else body.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

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
    return server


@contextmanager
def serving(documents: Mapping[str, tuple[str, Make]], port: int, address: str = LOOPBACK) -> Iterator[int]:
    """Serve until the context ends, see server_of; gives the port."""
    server = server_of(documents, port, address)
    threading.Thread(target=server.serve_forever, name="pages", daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
