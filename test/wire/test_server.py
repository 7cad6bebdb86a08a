"""The server with real websockets: what openpi's clients rely on, and what its own server does wrong."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_servers import WAIT_S, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from vla_accel_ros.wire.arrays import pack, unpack
from vla_accel_ros.wire.server import PolicyServer

RECORDED = Path(__file__).resolve().parents[1] / "data" / "openpi_wire"


class Echo:
    """Answers with what it got. blocked: answers wait for `go` then."""

    def __init__(self) -> None:
        self.go, self.waiting = threading.Event(), threading.Semaphore(0)
        self.go.set()

    def metadata(self) -> dict[str, Any]:
        return {"reset_pose": [0, -1.5, 1.5, 0, 0, 0]}

    def answer(self, request: Any) -> dict[str, Any]:
        self.waiting.release()
        assert self.go.wait(WAIT_S)
        if "echo" not in request:
            raise ValueError("the request has no echo")
        return {"actions": request["echo"]}


def client(server: PolicyServer, **options: Any) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{server.port}", compression=None, max_size=None, **options)


def ask(connection: ClientConnection, request: dict[str, Any]) -> dict[str, Any]:
    connection.send(pack(request))
    return received(connection)


def received(connection: ClientConnection) -> dict[str, Any]:
    answer = connection.recv(WAIT_S)
    assert isinstance(answer, bytes), answer
    return unpack(answer)


def get(server: PolicyServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_a_client_gets_the_metadata_then_answers_with_openpi_timing():
    with serving(Echo()) as server, client(server) as connection:
        assert received(connection) == {"reset_pose": [0, -1.5, 1.5, 0, 0, 0]}
        assert connection.response.headers.get("Sec-WebSocket-Extensions") is None
        first, second = (ask(connection, {"echo": np.arange(3.0)}) for _ in range(2))
    assert np.array_equal(first["actions"], np.arange(3.0))
    assert set(first["server_timing"]) == {"infer_ms"}
    assert set(second["server_timing"]) == {"infer_ms", "prev_total_ms"}


def test_the_recorded_handshake_and_request_of_openpi_client_are_answered():
    head = (RECORDED / "openpi_upgrade_request.bin").read_bytes()
    with serving(Echo(), token="k-123") as server:
        reader = asyncio.run(_raw(server.port, head))
    assert reader.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"sec-websocket-extensions" not in reader.lower()


async def _raw(port: int, head: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
    writer.close()
    return answer


@pytest.mark.parametrize("message", ["text", b"", b"\xc1", pack({"other": 1}), pack({"batch": []})])
def test_a_wrong_request_gets_a_text_and_1011_and_others_go_on(message):
    with serving(Echo()) as server, client(server) as wrong, client(server) as other:
        wrong.recv(WAIT_S), other.recv(WAIT_S)
        wrong.send(message)
        sentence = wrong.recv(WAIT_S)
        assert isinstance(sentence, str) and 0 < len(sentence) <= 500
        with pytest.raises(ConnectionClosed) as closed:
            wrong.recv(WAIT_S)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011
        recorded = (RECORDED / "openpi_s2c_4_close.bin").read_bytes()
        assert closed.value.rcvd.reason.encode() == recorded[2:]
        assert ask(other, {"echo": 1})["actions"] == 1
        assert server.counts.errors == 1


def test_a_message_above_the_limit_ends_its_connection_alone():
    with serving(Echo(), most_bytes=1000) as server, client(server) as large, client(server) as other:
        large.recv(WAIT_S), other.recv(WAIT_S)
        large.send(b"x" * 1001)
        with pytest.raises(ConnectionClosed) as closed:
            large.recv(WAIT_S)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
        assert ask(other, {"echo": 1})["actions"] == 1


def test_health_metrics_and_other_clients_do_not_wait_for_a_model():
    answers = Echo()
    with serving(answers, together=2) as server, client(server) as slow, client(server) as other:
        slow.recv(WAIT_S), other.recv(WAIT_S)
        answers.go.clear()
        slow.send(pack({"echo": 1}))
        assert answers.waiting.acquire(timeout=WAIT_S)
        assert get(server, "/healthz") == (200, "OK\n")
        status, text = get(server, "/metrics")
        assert status == 200 and "vla_serve_clients 2" in text and text.endswith("# EOF\n")
        other.send(pack({"echo": 2}))
        assert answers.waiting.acquire(timeout=WAIT_S)  # both are computed at once
        assert slow.ping().wait(WAIT_S)
        answers.go.set()
        assert received(slow)["actions"] == 1 and received(other)["actions"] == 2


def test_two_requests_before_an_answer_are_answered_in_order():
    with serving(Echo()) as server, client(server) as connection:
        connection.recv(WAIT_S)
        for number in (1, 2):
            connection.send(pack({"echo": number}))
        assert [received(connection)["actions"] for _ in range(2)] == [1, 2]


def test_a_batch_is_answered_together_and_one_wrong_request_fails_it():
    with serving(Echo()) as server, client(server) as connection:
        connection.recv(WAIT_S)
        answer = ask(connection, {"batch": [{"echo": 1}, {"echo": 2}]})
        assert [each["actions"] for each in answer["batch"]] == [1, 2] and "server_timing" in answer
        connection.send(pack({"batch": [{"echo": 1}, {}]}))
        assert "echo" in connection.recv(WAIT_S)


def test_without_the_token_nobody_gets_in_but_health():
    with serving(Echo(), token="secret") as server:
        for headers in ({}, {"Authorization": "Api-Key other"}):
            with pytest.raises(InvalidStatus) as refused:
                client(server, additional_headers=headers)
            assert refused.value.response.status_code == 401
        assert get(server, "/metrics")[0] == 401 and get(server, "/healthz")[0] == 200
        with client(server, additional_headers={"Authorization": "Api-Key secret"}) as connection:
            connection.recv(WAIT_S)
            assert ask(connection, {"echo": 1})["actions"] == 1


def test_a_client_too_many_is_refused_until_one_leaves():
    with serving(Echo(), clients=1) as server:
        with client(server) as connection:
            connection.recv(WAIT_S)
            with pytest.raises(InvalidStatus) as refused:
                client(server)
            assert refused.value.response.status_code == 503
        while server.counts.clients:  # the server has seen the close when the next one asks
            get(server, "/healthz")
        with client(server) as connection:
            assert received(connection)


def test_a_client_that_sends_pings_and_does_not_read_is_left(monkeypatch):
    monkeypatch.setattr("vla_accel_ros.wire.server.MOST_BYTES", 1000)
    head = (RECORDED / "openpi_upgrade_request.bin").read_bytes()
    ping = b"\x89\xfd\0\0\0\0" + b"x" * 125
    with serving(Echo()) as server, socket.create_connection(("127.0.0.1", server.port), WAIT_S) as flood:
        flood.sendall(head)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(10_000):
                flood.sendall(1000 * ping)
        with client(server) as other:
            other.recv(WAIT_S)
            assert ask(other, {"echo": 1})["actions"] == 1


def test_a_client_that_leaves_during_its_answer_frees_its_place():
    answers = Echo()
    with serving(answers, clients=1) as server:
        with client(server) as connection:
            connection.recv(WAIT_S)
            answers.go.clear()
            connection.send(pack({"echo": 1}))
            assert answers.waiting.acquire(timeout=WAIT_S)
            connection.socket.shutdown(socket.SHUT_RDWR)
        answers.go.set()
        while server.counts.clients:
            get(server, "/healthz")
        with client(server) as connection:
            connection.recv(WAIT_S)
            assert ask(connection, {"echo": 2})["actions"] == 2
