"""The emulated network: what its links do to packets, and the figures that are made of a run."""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import fleet_network
import pytest
from hosts.host import Host
from hosts.router import Direction, Link, Router

HOSTS = ("10.77.0.2", "10.77.1.2")


def packet(receiver: str, number: int, size: int = 100) -> bytes:
    """IPv4 to that address; its number is the payload's first."""
    header = struct.pack("!B15s4s", 0x45, b"", socket.inet_aton(receiver))
    return header + struct.pack("!I", number) + bytes(size - 24)


def sent_over(
    link: Link, count: int, receiver: str = HOSTS[1], size: int = 100
) -> tuple[list[int], Counter[str]]:
    """Send so many packets at once from the first host; returns the numbers that the second one gets."""
    ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in HOSTS]
    devices = {address: theirs.detach() for address, (_, theirs) in zip(HOSTS, ends, strict=True)}
    (first, second), got = [ours for ours, _ in ends], list[int]()
    second.settimeout(1.0)
    with first, second, Router(devices, {HOSTS[0]: link, HOSTS[1]: Link()}, seed=0) as router:
        for number in range(count):
            first.send(packet(receiver, number, size))
        try:
            while len(got) < count:
                got.append(struct.unpack_from("!I", second.recv(65536), 20)[0])
        except TimeoutError:
            pass
        return got, router.counts


def test_packets_arrive_in_order_and_those_that_are_lost_are_counted() -> None:
    got, counts = sent_over(Link(delay_s=0.001, jitter_s=0.001), 200)
    assert got == list(range(200)) and counts["packets"] == 200 and counts["bytes"] == 20_000
    got, counts = sent_over(Link(loss=0.2), 200)
    assert got == sorted(got) and 20 < 200 - len(got) < 60 and counts["lost"] == 200 - len(got)


@pytest.mark.parametrize("receiver", ["224.0.0.251", "10.77.9.2"])
def test_multicast_and_what_is_for_nobody_is_not_passed_on(receiver: str) -> None:
    got, counts = sent_over(Link(), 3, receiver)
    assert not got and not counts["packets"]


def test_a_packet_takes_its_turn_and_its_delay_and_a_full_link_drops_it() -> None:
    chance = random.Random(0)
    direction = Direction(Link(delay_s=0.01, rate_bit_s=8e6, queue_s=0.0025))
    arrivals = [direction.arrives_s(1000, 1.0, chance) for _ in range(4)]
    assert arrivals == [pytest.approx(1.011), pytest.approx(1.012), None, None]
    assert direction.arrives_s(1000, 2.0, chance) == pytest.approx(2.011)


def test_packets_do_not_overtake_each_other_however_much_their_delay_varies() -> None:
    chance, direction = random.Random(0), Direction(Link(jitter_s=0.05))
    arrivals = [direction.arrives_s(10, 0.001 * number, chance) or 0.0 for number in range(500)]
    assert arrivals == sorted(arrivals) and arrivals[0] > 0.0


def robot(rounds: list[dict[str, Any]], told: list[Any]) -> dict[str, Any]:
    return {"rounds": rounds, "told": told, "judged": {"wrong": [], "broken": ["x"], "rejected": []}}


def asked(asked_s: float, took_s: float | None, attempts: int = 1) -> dict[str, Any]:
    answered_s = None if took_s is None else asked_s + took_s
    return {"asked_s": asked_s, "answered_s": answered_s, "attempts": attempts, "image_bytes": 4000}


def test_a_row_is_of_the_rounds_in_the_window_and_says_why_robots_stood() -> None:
    rounds = [asked(9.0, 5.0), asked(10.0, 0.1), asked(12.0, 0.3, 2), asked(13.0, None), asked(19.0, 0.1)]
    told = [(5.0, True, ()), (12.0, False, ("chunk is 1.25 s old",)), (14.0, True, ())]
    counts = Counter(packets=200, lost=10, bytes=10**7)
    row = fleet_network.row("wifi", "jpeg", [robot(rounds, told)], counts, 10.0, 20.0)
    assert row["rounds"] == 3 and row["took_ms"]["p50"] == 200.0 and row["took_ms"]["max"] == 300.0
    assert row["asked_again"] == pytest.approx(1 / 3, abs=1e-4) == row["without_chunk"]
    assert row["stood"] == 0.2 and row["reasons"] == ["chunk is N s old"] and row["limits_broken"] == 1
    assert row["packets_lost"] == 0.05 and row["mbit_s"] == 8.0


def test_a_window_in_which_no_chunk_came_is_no_row() -> None:
    with pytest.raises(fleet_network.NoMotion, match="no robot got a chunk"):
        fleet_network.row("weak", "raw", [robot([asked(12.0, None)], [])], Counter(), 10.0, 20.0)


@pytest.mark.parametrize(
    ("word", "value"), [("--robots", "0"), ("--robots", "5"), ("--seconds", "1"), ("--seconds", "nan")]
)
def test_what_cannot_be_measured_is_refused(
    word: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        fleet_network.main([word, value])
    assert f"{word} is" in capsys.readouterr().err


def test_what_stands_at_the_begin_or_the_end_of_a_window_stands_in_it() -> None:
    assert fleet_network.stood([(5.0, False, ())], 10.0, 20.0) == 10.0
    assert fleet_network.stood([(5.0, False, ()), (12.0, True, ()), (19.0, False, ())], 10.0, 20.0) == 3.0


def test_without_the_right_to_make_namespaces_it_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "unshare"
    program.write_text("#!/bin/sh\necho unshare failed: Operation not permitted >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(PermissionError, match="Operation not permitted; run as root"), Host("10.77.0.2"):
        pass
