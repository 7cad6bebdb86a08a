"""A router in user space: hosts on subnets of their own, each behind a link that delays and loses packets.

Every host has a TUN device, of which this process has the other end. A packet takes its sender's link and its
receiver's. Multicast is not passed on, as between subnets.
"""

from __future__ import annotations

import os
import random
import select
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from socket import inet_ntoa

LARGEST, AT_ONCE = 65536, 64
IDLE_S = 0.1


@dataclass(frozen=True)
class Link:
    """One direction of a link. delay_s: of every packet; jitter_s: mean of an exponential further delay, in
    which packets do not overtake each other; loss: share of the packets; rate_bit_s: a packet that would wait
    longer than queue_s for those before it is dropped."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    rate_bit_s: float = 1e9
    queue_s: float = 0.2


class Direction:
    """A link in one direction, and when its last packet leaves and arrives."""

    def __init__(self, link: Link) -> None:
        self.link, self._free_s, self._arrived_s = link, 0.0, 0.0

    def arrives_s(self, size: int, now_s: float, chance: random.Random) -> float | None:
        """Return when a packet that starts now arrives; None if it is lost."""
        link = self.link
        leaves_s = max(now_s, self._free_s) + 8 * size / link.rate_bit_s
        if leaves_s - now_s > link.queue_s:
            return None
        self._free_s = leaves_s
        if chance.random() < link.loss:
            return None
        more_s = chance.expovariate(1 / link.jitter_s) if link.jitter_s else 0.0
        self._arrived_s = max(self._arrived_s, leaves_s + link.delay_s + more_s)
        return self._arrived_s


class Router:
    """A context manager, with a thread of its own. devices: address -> file descriptor of its host's TUN
    device; links: address -> the host's link, the same both ways. counts: packets by outcome."""

    def __init__(self, devices: Mapping[str, int], links: Mapping[str, Link], seed: int) -> None:
        self._devices, self._chance = dict(devices), random.Random(seed)
        self._up = {address: Direction(links[address]) for address in devices}
        self._down = {address: Direction(links[address]) for address in devices}
        self._flying: list[tuple[float, int, int, bytes]] = []  # arrival, number, device, packet
        self.counts: Counter[str] = Counter()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Router:
        for device in self._devices.values():
            os.set_blocking(device, False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for device in self._devices.values():
            os.close(device)

    def _run(self) -> None:
        address_of = {device: address for address, device in self._devices.items()}
        while not self._ends.is_set():
            now_s = time.monotonic()
            while self._flying and self._flying[0][0] <= now_s:
                _, _, device, packet = heappop(self._flying)
                self._write(device, packet)
            wait_s = min(self._flying[0][0] - now_s, IDLE_S) if self._flying else IDLE_S
            for device in select.select(list(address_of), [], [], max(0.0, wait_s))[0]:
                self._read(device, address_of[device])

    def _read(self, device: int, sender: str) -> None:
        for _ in range(AT_ONCE):
            try:
                packet = os.read(device, LARGEST)
            except BlockingIOError:
                return
            receiver = inet_ntoa(packet[16:20]) if packet[0] >> 4 == 4 else ""
            if receiver not in self._devices:
                continue  # multicast, IPv6
            self.counts["packets"] += 1
            self.counts["bytes"] += len(packet)
            now_s = time.monotonic()
            over_s = self._up[sender].arrives_s(len(packet), now_s, self._chance)
            at_s = over_s and self._down[receiver].arrives_s(len(packet), over_s, self._chance)
            if at_s is None:
                self.counts["lost"] += 1
            else:
                heappush(self._flying, (at_s, self.counts["packets"], self._devices[receiver], packet))

    def _write(self, device: int, packet: bytes) -> None:
        try:
            os.write(device, packet)
        except BlockingIOError:
            self.counts["lost"] += 1
