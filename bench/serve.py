"""The policy server: what its wire costs beside openpi's own, and how many chunks many clients get.

    python bench/serve.py [--parts pair clients full] [--openpi PYTHON] [--rounds N] [--clients N]

pair: time of one request of DROID's clients (two pictures of 224 x 224), answered by an empty policy, on
    loopback: openpi's client and server, unmodified, ours, and one of each. Servers and clients are processes
    of their own; the pairs take turns, 100 requests at a time. --openpi is the Python of an environment with
    both (out/peers/openpi/bin/python, by make test-peers); "" measures ours alone.
clients: chunks a second of the bundled policy, for --clients clients that ask again as soon as they are
    answered, and for the same engine as a replica of a fleet that always has as many requests as it takes
    (bench/fleet.py), in turns.
full: the same on a GPU, by one engine for both: a full-size pi0.5 with random weights in bfloat16, two
    pictures of 224 x 224, and each client a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from fleets.loads import saturate
from fleets.serving import STEP_DT_S, Arm, Camera, Robots
from run import BENCHES, Bench, Given, Row, main, place
from shared.models import config_of
from shared.policies import random_policy
from shared.timing import alone, gpu_id, summary
from vla_accel_ros.contract.sections.keys import keys_of
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.engine.goals import for_policy
from vla_accel_ros.engine.options import has_stages
from vla_accel_ros.engine.robots import Embodiment
from vla_accel_ros.fleet.protocol import EncodedObservation, RobotDescription
from vla_accel_ros.fleet.replicas.local import LocalReplica
from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.policies import AnyPolicy
from vla_accel_ros.nodes.running.environment import demo_model
from vla_accel_ros.tools.serve import TOGETHER, threads_for
from vla_accel_ros.wire.answering import Answering
from vla_accel_ros.wire.arrays import pack
from vla_accel_ros.wire.server import PolicyServer

OPENPI = BENCHES.parent / "out" / "peers" / "openpi" / "bin" / "python"
AT_ONCE, WARM_UP = 100, 50

SERVERS = {
    "ours": """
import asyncio, sys
import numpy as np
from vla_accel_ros.wire.server import PolicyServer

class Empty:
    def metadata(self): return {}
    def answer(self, request): return {"actions": ACTIONS}

async def serve():
    server = PolicyServer(Empty(), port=0)
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()

ACTIONS = np.zeros((10, 8), np.float32)
asyncio.run(serve())
""",
    "openpi": """
import logging, socket
import numpy as np
from openpi.serving.websocket_policy_server import WebsocketPolicyServer
from openpi_client.base_policy import BasePolicy

class Empty(BasePolicy):
    def infer(self, obs): return {"actions": ACTIONS}

ACTIONS = np.zeros((10, 8), np.float32)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
print(port, flush=True)
WebsocketPolicyServer(Empty(), "127.0.0.1", port).serve_forever()
""",
}
ASK = """
import json, sys, time
import numpy as np
port, request = int(sys.argv[1]), {
    "observation/exterior_image_1_left": np.random.default_rng(0).integers(0, 255, (224, 224, 3), np.uint8),
    "observation/wrist_image_left": np.random.default_rng(1).integers(0, 255, (224, 224, 3), np.uint8),
    "observation/joint_position": np.zeros(7), "observation/gripper_position": np.zeros(1), "prompt": "go",
}
while True:
    try:
        client = connect()
        break
    except OSError:
        pass
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        begun = time.perf_counter()
        ask(client, request)
        times.append(1e3 * (time.perf_counter() - begun))
    print(json.dumps(times), flush=True)
"""
CLIENTS = {
    "ours": """
from vla_accel_ros.wire.client import PolicyClient
def connect():
    client = PolicyClient(f"ws://127.0.0.1:{port}")
    client.infer(request, 10.0)
    return client
def ask(client, request): client.infer(request, 10.0)
"""
    + ASK,
    "openpi": """
from openpi_client.websocket_client_policy import WebsocketClientPolicy
def connect(): return WebsocketClientPolicy("127.0.0.1", port)
def ask(client, request): client.infer(request)
"""
    + ASK,
}

MANY = """
import sys, threading, time
from vla_accel_ros.wire.arrays import unpack
from vla_accel_ros.wire.client import PolicyClient
url, count, request = sys.argv[1], int(sys.argv[2]), unpack(bytes.fromhex(input()))

def ask(client):
    while time.monotonic() < until:
        client.infer(request, 60.0)
        if time.monotonic() < until:
            answers.append(1)

clients = [PolicyClient(url) for _ in range(count)]
for line in sys.stdin:
    for counted, seconds in ((False, min(1.0, float(line))), (True, float(line))):
        answers, until = [], time.monotonic() + seconds
        threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    print(len(answers) / seconds, flush=True)
"""
WORDS = "reach the red block"


@contextmanager
def process(python: str, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A script with pipes, killed at the end."""
    command = [python, "-c", script, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def line(running: subprocess.Popen[str], word: str = "") -> str:
    """What it prints, after it was given a word."""
    assert running.stdin is not None and running.stdout is not None
    if word:
        print(word, file=running.stdin, flush=True)
    text = running.stdout.readline()
    if not text:
        raise RuntimeError("a process of the bench ended: its error is above")
    return text


def pair(given: Given) -> Row:
    """Times of each client with each server [ms]."""
    pythons = {"ours": sys.executable, **({"openpi": given.openpi} if given.openpi else {})}
    if given.openpi and not Path(given.openpi).exists():
        raise RuntimeError(f"{given.openpi} is absent: run make test-peers, or give --openpi")
    times: dict[tuple[str, str], list[list[float]]] = {}
    with ExitStack() as stack:
        ports = {
            name: line(stack.enter_context(process(python, SERVERS[name]))).strip()
            for name, python in pythons.items()
        }
        clients = {
            (name, other): stack.enter_context(process(python, CLIENTS[name], ports[other]))
            for name, python in pythons.items()
            for other in pythons
        }
        for running in clients.values():
            line(running, str(WARM_UP))
        for _ in range(given.rounds):
            for names, running in clients.items():
                times.setdefault(names, []).append(json.loads(line(running, str(AT_ONCE))))
    rows = {
        f"client {client}, server {server}": summary(np.array(rounds).ravel())
        for (client, server), rounds in times.items()
    }
    result: Row = {"rounds": given.rounds, "ms": rows}
    if given.openpi:
        ratios = [
            median(own) / median(public)
            for own, public in zip(times["ours", "ours"], times["openpi", "openpi"], strict=True)
        ]
        result["ours_of_openpi"] = round(median(ratios), 3)
    return result


def clients(given: Given) -> Row:
    """Chunks a second by the wire and by a replica of the same engine, in turns."""
    dtype = torch.float32 if given.device == "cpu" else torch.bfloat16
    policy = load_policy(demo_model(), torch.device(given.device), dtype)
    command = "import sys; from vla_accel_ros.tools.cli import main; raise SystemExit(main(sys.argv[1:]))"
    serve = [
        "serve",
        f"--device={given.device}",
        "--port=0",
        f"--clients={given.clients}",
        f"--goal={given.goal}",
    ]
    with ExitStack() as stack:
        url = line(stack.enter_context(process(sys.executable, command, *serve))).split()[1]
        replica, robots = stack.enter_context(fleet(make_engine(policy, given), given))
        return compared(url, [given.clients], replica, robots, given)


def full(given: Given) -> Row:
    """The same of a full-size network, with a process for each client; both by one engine."""
    sys.setswitchinterval(SWITCH_S)  # as vla serve and the fleet's nodes do
    device, dtype = place(given.small)
    with alone(gpu_id(device)), ExitStack() as stack:
        policy = random_policy(config_of("pi05", given.small), device, dtype)
        engine = make_engine(policy, given)
        keep_loaded()
        url = stack.enter_context(served(engine, given))
        replica, robots = stack.enter_context(fleet(engine, given))
        return {"full": compared(url, [1] * given.clients, replica, robots, given)}


def compared(url: str, processes: Sequence[int], replica: LocalReplica, robots: Robots, given: Given) -> Row:
    """Chunks a second of both, in turns. processes: number of clients of each."""
    policy, chunks_hz = replica.engine.policy, dict[str, list[float]](wire=[], replica=[])
    with ExitStack() as stack:
        asking = [stack.enter_context(process(sys.executable, MANY, url, str(count))) for count in processes]
        for client in asking:
            print(pack(observation(policy)).hex(), file=client.stdin, flush=True)
        for client in asking:
            line(client, "0.01")  # it has begun

        def wire(seconds: float) -> float:
            for client in asking:
                print(seconds, file=client.stdin, flush=True)
            return sum(float(line(client)) for client in asking)

        for _ in range(given.turns):
            chunks_hz["wire"].append(rate(wire, given.seconds))
            chunks_hz["replica"].append(
                rate(lambda seconds: saturate(replica, robots, seconds)["chunks_hz"], given.seconds)
            )
    ratios = [wire / other for wire, other in zip(*chunks_hz.values(), strict=True)]
    return {
        "clients": given.clients,
        "goal": given.goal,
        "seats": replica.engine.config.staggered,
        "chunks_hz": chunks_hz,
        "wire_of_replica": round(median(ratios), 3),
    }


@contextmanager
def served(engine: Engine, given: Given) -> Iterator[str]:
    """The address of a server of this engine, which answers as that of vla serve does."""
    together = threads_for(engine.config, given.clients)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def begun() -> PolicyServer:
        answering = Answering(engine, keys_of("native", engine.policy.config.image_names))
        server = PolicyServer(answering, port=0, clients=given.clients, together=together)
        await server.start()
        return server

    server = wait(begun())
    try:
        yield f"ws://127.0.0.1:{server.port}"
    finally:
        wait(server.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def make_engine(policy: AnyPolicy, given: Given) -> Engine:
    """An engine of the goal that has prepared what the observation needs."""
    config = for_policy(policy, EngineConfig(fast=has_stages(policy), goal=given.goal))
    slots = max(config.slots, min(TOGETHER, given.clients)) + config.further_slots(False) + 2
    engine = Engine(policy, config.but(slots=slots))
    if engine.config.fast:
        request = observation(policy)
        engine.prepare([len(request["images"])], [len(policy.prompt(WORDS, request["state"]))])
    return engine


def rate(measure: Callable[[float], float], seconds: float) -> float:
    """Chunks a second; a turn too short for one chunk is measured again, twice as long."""
    while not (chunks_hz := measure(seconds)):
        seconds *= 2
    return chunks_hz


def observation(policy: AnyPolicy) -> dict[str, Any]:
    """A request of the bundled policy."""
    side = policy.image_size
    picture = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    images = dict.fromkeys(policy.config.image_names[:2], picture)
    return {"images": images, "state": np.zeros(policy.joints), "prompt": WORDS}


@contextmanager
def fleet(engine: Engine, given: Given) -> Iterator[tuple[LocalReplica, Robots]]:
    """A replica, and as many robots as clients with the same observation."""
    policy = engine.policy
    request = observation(policy)
    cameras = tuple(Camera(name, name) for name in request["images"])
    arm = Arm(cameras, tuple(map(str, range(policy.joints))))
    state = request["state"].astype(np.float32)
    seen = EncodedObservation(request["images"], {}, state, WORDS, 0)
    names = [f"/robot{index}" for index in range(given.clients)]
    robots = Robots(
        dict.fromkeys(names, arm),
        dict.fromkeys(names, Embodiment(policy, STEP_DT_S)),
        dict.fromkeys(names, (seen,)),
        (),
    )
    replica = LocalReplica(engine, robots.embody)
    try:
        for name in names:
            replica.describe(RobotDescription("bench", name, "")).result(60)
        yield replica, robots
    finally:
        replica.close()


def options(add: Callable[..., Any]) -> None:
    add("--openpi", default=str(OPENPI), help='Python with openpi, "" for none (default: %(default)s)')
    add("--rounds", type=int, default=20, help="of 100 requests for each pair (default: %(default)s)")
    add("--clients", type=int, default=32, help="(default: %(default)s)")
    add("--device", default="cpu", help="of the policy (default: %(default)s)")
    add("--goal", default="many_robots", help="of the engine (default: %(default)s)")
    add("--turns", type=int, default=5, help="(default: %(default)s)")
    add("--seconds", type=float, default=10.0, help="of a turn (default: %(default)s)")


BENCH = Bench(
    "serve",
    parts={"pair": pair, "clients": clients, "full": full},
    normally=("pair", "clients"),
    options=options,
    small=True,
    smoke="--parts pair clients full --small --openpi= --rounds 1 --clients 2 --turns 1 --seconds 0.01",
)

if __name__ == "__main__":
    raise SystemExit(main(BENCH))
