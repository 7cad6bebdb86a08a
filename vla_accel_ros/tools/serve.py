"""`vla serve`: the model behind openpi's websocket protocol, for the clients of others.

Any client of openpi's (openpi-client, policy-websocket, pi.cpp's and DROID's scripts) gets its answers from
this engine instead of openpi's server: --keys says which keys it sends. Many clients share the engine. The
actions are the policy's own, in the units of its training. No contract limits them: the client does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vla_accel_ros.tools.options import (
    chosen_device,
    chosen_model,
    compute_options,
    engine_options,
    model_option,
    say,
    subcommand,
    training_option,
)

if TYPE_CHECKING:
    from vla_accel_ros.contract.sections.keys import Keys
    from vla_accel_ros.engine.config import EngineConfig
    from vla_accel_ros.wire.server import PolicyServer

CLIENTS, TOGETHER = 32, 16


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subcommand(subparsers, "serve", "serve a model to clients of openpi's protocol", run)
    model_option(parser)
    training_option(parser)
    compute_options(parser)
    engine_options(parser, "goal", "steps", only_given=True)
    add = parser.add_argument
    add("--statistics", help="which statistics, if there are several: asset id or data set")
    add("--host", default="127.0.0.1", help="address to listen on, 0.0.0.0 for all (default: %(default)s)")
    add("--port", type=int, default=8000, help="(default: %(default)s)")
    add("--keys", default="native", metavar="PRESET|CONTRACT",
        help="where clients put pictures, state and prompt: native (images[NAME], state, prompt), "
        "openpi-droid, openpi-libero, openpi-aloha, openpi-ur5, picpp, picpp-pi06, lerobot, or a contract "
        "(default: %(default)s)")  # fmt: skip
    add("--prompt", default="", help="instruction for requests without one")
    add("--clients", type=int, default=CLIENTS, help="most clients at once (default: %(default)s)")
    add("--token-file", type=Path, help="file with the token that clients must give as api_key")
    add("--certificate", type=Path, help="TLS certificate, PEM; with --private-key")
    add("--private-key", type=Path, help="of the certificate, PEM")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C. Raises ValueError for options that do not fit, OSError if the port is taken."""
    if not 1 <= arguments.clients <= 1024:
        raise ValueError(f"--clients is {arguments.clients}: give 1 to 1024")
    if (arguments.certificate is None) != (arguments.private_key is None):
        raise ValueError("--certificate and --private-key belong together: give both")
    token = arguments.token_file.read_text().strip() if arguments.token_file else ""
    if arguments.token_file and not token:
        raise ValueError(f"{arguments.token_file} is empty: write the token into it")
    tls = None
    if arguments.certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(arguments.certificate, arguments.private_key)

    try:
        from vla_accel_ros.wire.answering import Answering
        from vla_accel_ros.wire.server import PolicyServer
    except ImportError as error:
        raise RuntimeError(f"vla serve needs {error.name}: pip install 'vla_accel_ros[serve]'") from error
    from vla_accel_ros.engine.config import EngineConfig
    from vla_accel_ros.engine.engine import Engine
    from vla_accel_ros.engine.goals import for_policy
    from vla_accel_ros.engine.options import has_stages
    from vla_accel_ros.interpreter import SWITCH_S, keep_loaded
    from vla_accel_ros.models.checkpoints.checkpoint import describe, load_policy
    from vla_accel_ros.models.checkpoints.progress import Meter

    model = chosen_model(arguments)
    described = describe(model, arguments.statistics, arguments.trained_as)
    keys = _keys(arguments.keys, described.config.image_names)  # refused before a weight is read
    device, dtype = chosen_device(arguments)
    with Meter(f"loading {model.name}") as meter:
        policy = load_policy(
            model,
            device,
            dtype,
            statistics=arguments.statistics,
            trained_as=arguments.trained_as,
            progress=meter,
        )
    chosen = {name: getattr(arguments, name) for name in ("goal", "steps") if hasattr(arguments, name)}
    config = for_policy(policy, EngineConfig(fast=has_stages(policy), **chosen))
    together = threads_for(config, arguments.clients)
    engine = Engine(policy, config.but(slots=max(config.slots, together + config.further_slots(False) + 2)))
    if device.type == "cuda":
        say("preparing the fast stages ...")
        engine.prepare(range(1, len(keys.images) + 1), range(1, policy.config.max_prompt + 1))
    server = PolicyServer(
        Answering(engine, keys, arguments.prompt),
        host=arguments.host,
        port=arguments.port,
        clients=arguments.clients,
        together=together,
        token=token,
        tls=tls,
    )
    sys.setswitchinterval(SWITCH_S)  # the engine's threads wait for what those of the clients decode
    keep_loaded()
    asyncio.run(_serve(server, arguments, token))
    return 0


def threads_for(config: EngineConfig, clients: int) -> int:
    """How many requests are computed at once, each by a thread: enough to keep the engine's seats full."""
    from vla_accel_ros.fleet.replicas.local import at_once

    return min(max(TOGETHER, at_once(config)), clients)


def _keys(name: str, images: Sequence[str]) -> Keys:
    """Of a preset or a contract. Raises ValueError if clients of this form cannot be answered."""
    from vla_accel_ros.contract.contract import Contract
    from vla_accel_ros.contract.sections.keys import OPENPI, keys_of

    keys = Contract.load(name).keys if name.endswith((".yaml", ".yml")) else keys_of(name, images)
    if keys.dialect != OPENPI:
        raise ValueError(
            f"--keys {name}: {keys.dialect} is the form of a server that robots can ask, not of clients"
        )
    return keys


async def _serve(server: PolicyServer, arguments: argparse.Namespace, token: str) -> None:
    """Run until a signal."""
    await server.start()
    scheme = "ws" if arguments.certificate is None else "wss"
    print(f"ready: {scheme}://{arguments.host}:{server.port} answers with keys {arguments.keys}", flush=True)
    if arguments.host not in ("127.0.0.1", "localhost", "::1") and not token:
        print(f"anybody who reaches {arguments.host} gets answers: --token-file asks for a token", flush=True)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    await server.close()
