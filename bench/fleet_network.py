"""A fleet over a network: robots and scheduler on hosts of different subnets, behind links that lose packets.

    sudo .venv/bin/python bench/fleet_network.py [--links lan wifi weak wan] [--images jpeg raw] [--robots 2]
        [--seconds 60] [--json FILE] [--small]

Each host is a Linux network namespace with an address and shared memory of its own, so that Fast DDS has only
UDP between them; a router in user space (hosts/router.py) delays and loses packets and passes no multicast
on, so hosts find each other by ROS_STATIC_PEERS. The nodes are real: `fleet` with a policy of random weights,
and for each robot `fleet_inference` and `trajectory`, with two cameras of 640x480. The robots' clocks are 2 s
apart from the scheduler's. Measured on the robot's host: from its request to its chunk, how often it asked
again, how long it did not move, and whether the controllers' limits were kept. Prints a table and writes
bench/results/fleet_network.json; --small takes one link for a few seconds and writes only to --json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from hosts.host import Host
from hosts.router import Link, Router

from chaos.fleet import INSTRUCTION
from chaos.model import MOST_ROBOTS, statistics_of, write_contract, write_model
from vla_accel_ros.nodes.running.environment import process_environment
from vla_accel_ros.tools.provenance import provenance
from vla_accel_ros.tools.running.processes import NodeProcess

RESULT = Path(__file__).parent / "results" / "fleet_network.json"
ROBOT = Path(__file__).parent / "hosts" / "robot.py"
LINKS = {
    "lan": Link(delay_s=0.0002),
    "wifi": Link(delay_s=0.002, jitter_s=0.001, loss=0.002, rate_bit_s=1e8),
    "weak": Link(delay_s=0.005, jitter_s=0.005, loss=0.02, rate_bit_s=2e7),
    "wan": Link(delay_s=0.025, jitter_s=0.001, loss=0.0005, rate_bit_s=5e7),
}
"""Of each robot, one way; the scheduler's own link is `lan`."""
END_S, LEFT_S, LEAST_S, SEED = 30.0, 2.0, 5.0, 0
"""Time for the robots' programs to end; of a window, in which no round counts that begins then; the shortest
window."""


class NoMotion(Exception):
    """A robot got no chunk in time."""


def environment_of(peers: Sequence[str], folder: Path) -> dict[str, str]:
    """The whole environment of a process on a host that knows its peers by address."""
    found = process_environment({"PYTHONPATH": str(Path(__file__).resolve().parents[1])})
    for name in ("ROS_LOCALHOST_ONLY", "ROS_DISCOVERY_SERVER"):
        found.pop(name, None)
    return {
        **found,
        "ROS_DOMAIN_ID": "0",
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET",
        "ROS_STATIC_PEERS": ";".join(peers),
        "XDG_STATE_HOME": str(folder / "state"),
    }


def measure(link: str, images: str, robots: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Run one fleet; returns its row. Raises NoMotion if a robot does not move at all."""
    write_contract(folder / "contract.yaml")
    model = write_model(folder / "model", robots)
    addresses = [f"10.77.{number + 1}.2" for number in range(robots)]
    with ExitStack() as stack:
        server = stack.enter_context(Host("10.77.0.2"))
        hosts = [stack.enter_context(Host(address)) for address in addresses]
        devices = {host.address: host.device for host in (server, *hosts)}
        links = {server.address: LINKS["lan"], **dict.fromkeys(addresses, LINKS[link])}
        router = stack.enter_context(Router(devices, links, seed=SEED))
        parameters = {"model": str(model), "contract": str(folder / "contract.yaml"), "autostart": True}
        parameters |= {"statistics": statistics_of(0), "steps": 2, "torch_threads": 1}
        given = [
            word for name, value in parameters.items() for word in ("-p", f"{name}:={json.dumps(value)}")
        ]
        program = server.command(sys.executable, "-m", "vla_accel_ros.nodes.fleet")
        scheduler = NodeProcess(
            "scheduler", given, environment_of(addresses, folder), folder / "scheduler.log", program=program
        )
        stack.callback(scheduler.end)
        scheduler.start()
        running = []
        for number, host in enumerate(hosts):
            program = host.command(sys.executable, str(ROBOT), str(number), "--folder", str(folder))
            running.append(
                subprocess.Popen(
                    [*program, "--images", images],
                    env=environment_of([server.address], folder),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(running[-1].kill)
        for one in running:
            assert one.stdout is not None
            if one.stdout.readline().strip() != "moving":
                raise NoMotion(f"{link}, {images}: a robot does not move; {scheduler.last_words()}")
        began_s, before = time.monotonic(), router.counts.copy()
        time.sleep(seconds)
        ended_s, counts = time.monotonic(), router.counts - before
        found = [json.loads(one.communicate("", timeout=END_S)[0]) for one in running]
    return row(link, images, found, counts, began_s, ended_s)


def row(
    link: str, images: str, found: Sequence[Any], counts: Any, began_s: float, ended_s: float
) -> dict[str, Any]:
    """The figures of all robots, of rounds that began in the window with LEFT_S of it left. Raises NoMotion
    if none got a chunk."""
    until_s = ended_s - LEFT_S
    rounds = [one for robot in found for one in robot["rounds"] if began_s <= one["asked_s"] < until_s]
    took_ms = [1e3 * (one["answered_s"] - one["asked_s"]) for one in rounds if one["answered_s"] is not None]
    if not took_ms:
        raise NoMotion(f"{link}, {images}: no robot got a chunk within the window")
    p50, p99 = np.percentile(took_ms, (50, 99))
    judged = [robot["judged"] for robot in found]
    stood_s = [stood(robot["told"], began_s, ended_s) for robot in found]
    reasons = sorted(
        {
            re.sub(r"\d+(\.\d+)?", "N", reason)
            for robot in found
            for at_s, running, said in robot["told"]
            if not running and began_s < at_s < ended_s
            for reason in said
        }
    )
    return {
        "link": link,
        "images": images,
        "moves": True,
        "rounds": len(rounds),
        "request_kb": round(float(np.median([one["image_bytes"] for one in rounds])) / 1e3, 1),
        "took_ms": {"p50": round(float(p50), 1), "p99": round(float(p99), 1), "max": round(max(took_ms), 1)},
        "asked_again": round(sum(one["attempts"] > 1 for one in rounds) / len(rounds), 4),
        "without_chunk": round(sum(one["answered_s"] is None for one in rounds) / len(rounds), 4),
        "stood": round(sum(stood_s) / (len(found) * (ended_s - began_s)), 4),
        "reasons": reasons,
        "packets_lost": round(counts["lost"] / max(1, counts["packets"]), 4),
        "mbit_s": round(8e-6 * counts["bytes"] / (ended_s - began_s), 2),
        "chunks_wrong": sum(len(one["wrong"]) for one in judged),
        "limits_broken": sum(len(one["broken"]) for one in judged),
        "commands_rejected": sum(len(one["rejected"]) for one in judged),
    }


def stood(told: Sequence[Any], began_s: float, ended_s: float) -> float:
    """How long within the window a robot did not run, of (time, whether it runs, reasons)."""
    total_s, since_s, running = 0.0, began_s, True
    for at_s, runs, _ in (*told, (ended_s, True, ())):
        at_s = min(max(at_s, began_s), ended_s)
        if not running:
            total_s += at_s - since_s
        since_s, running = at_s, runs
    return total_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, measure; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--images", nargs="+", choices=("jpeg", "raw"), default=["jpeg", "raw"])
    parser.add_argument("--robots", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    given = parser.parse_args(arguments)
    if not 1 <= given.robots <= MOST_ROBOTS:
        parser.error(f"--robots is {given.robots}: give 1 to {MOST_ROBOTS}")
    if not LEAST_S <= given.seconds < math.inf:
        parser.error(f"--seconds is {given.seconds}: give {LEAST_S:g} or more")
    if given.small:
        given.links, given.images, given.robots, given.seconds = ["wifi"], ["jpeg"], 1, 6.0
    rows = []
    for link in given.links:
        for images in given.images:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    rows.append(measure(link, images, given.robots, given.seconds, Path(folder)))
                except PermissionError as error:
                    parser.error(str(error))
                except NoMotion as error:
                    rows.append({"link": link, "images": images, "moves": False})
                    print(error, file=sys.stderr)
            print(rows[-1], flush=True)
    out = given.json or (None if given.small else RESULT)
    if out is not None:
        what: dict[str, Any] = {"robots": given.robots, "seconds": given.seconds, "instruction": INSTRUCTION}
        links = {name: vars(LINKS[name]) for name in given.links}
        document = {
            "rows": rows,
            "links": links,
            **what,
            "cores": os.cpu_count(),
            "seeds": [SEED],
            **provenance(),
        }
        out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
