"""Clients of openpi and policy-websocket (pi.cpp) ask our server, our client their servers, all unchanged."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import JOINTS, make_policy
from peers import free_port, python, run
from PIL import Image
from policy_servers import WAIT_S, serving

from vla_accel_ros.contract.sections.keys import keys_of
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.types import Observation
from vla_accel_ros.wire.answering import Answering
from vla_accel_ros.wire.client import PolicyClient
from vla_accel_ros.wire.dialects import ServerError
from vla_accel_ros.wire.keys import resize_with_pad

pytestmark = pytest.mark.peers

RANDOM = np.random.default_rng(0)
PICTURE = RANDOM.integers(0, 255, (28, 28, 3), dtype=np.uint8)
LARGE = RANDOM.integers(0, 255, (48, 64, 3), dtype=np.uint8)
STATE = RANDOM.normal(size=JOINTS)
NOISES = RANDOM.normal(size=(3, 8, 8)).astype(np.float32)
PREFIX = np.tile(STATE, (4, 1))

CLIENT = """
import sys
from importlib import import_module
import numpy as np
from openpi_client.image_tools import resize_with_pad

module, url, given, out, token = sys.argv[1:]
WebsocketClientPolicy = import_module(module).WebsocketClientPolicy
data = dict(np.load(given))
client = WebsocketClientPolicy(url, api_key=token or None)
noises = data["noises"]

def request(number=0, picture=data["picture"], **more):
    images = {"base_0_rgb": picture}
    return {"images": images, "state": data["state"], "prompt": "reach", "noise": noises[number], **more}

first = client.infer(request())
assert set(first["server_timing"]) == {"infer_ms"}, first
answers = {"plain": first["actions"]}
batch = client.infer({"batch": [request(number) for number in range(len(noises))]})
answers |= {f"batch {number}": answer["actions"] for number, answer in enumerate(batch["batch"])}
answers["continued"] = client.infer(request(action_prefix=data["prefix"], delay=2))["actions"]
answers["jpeg"] = client.infer(request(picture=data["jpeg"].tobytes()))["actions"]
answers["resized"] = client.infer(request(picture=resize_with_pad(data["large"], 28, 28)))["actions"]
answers["again"] = client.infer(request())["actions"]
np.savez(out, model=client.get_server_metadata()["model"], **answers)
try:
    client.infer({"state": data["state"]})
except RuntimeError as error:
    print(error)
if hasattr(client, "close"):  # policy-websocket's hangs at the interpreter's end if it is open
    client.close()
"""

SERVER = """
import sys
from importlib import import_module
import numpy as np

WebsocketPolicyServer = import_module(sys.argv[2]).WebsocketPolicyServer
BasePolicy = import_module(sys.argv[3]).BasePolicy

class Doubles(BasePolicy):
    def infer(self, obs):
        return {"actions": np.tile(2 * obs["state"], (5, 1)), "state": obs["state"]}

WebsocketPolicyServer(Doubles(), "127.0.0.1", int(sys.argv[1]), {"reset_pose": [0]}).serve_forever()
"""


CLIENTS = ("openpi_client.websocket_client_policy", "policy_websocket")
SERVERS = (
    ("openpi.serving.websocket_policy_server", "openpi_client.base_policy"),
    ("policy_websocket", "policy_websocket"),
)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(make_policy(), steps=3, slots=8)


def asked(
    folder: Path, module: str, url: str, token: str = "", **environment: str
) -> tuple[dict[str, Any], str]:
    """The client's answers, and the error that it was told last."""
    stream = BytesIO()
    Image.fromarray(PICTURE).save(stream, "jpeg")
    jpeg = np.frombuffer(stream.getvalue(), np.uint8)
    np.savez(
        folder / "given.npz",
        picture=PICTURE,
        large=LARGE,
        state=STATE,
        noises=NOISES,
        prefix=PREFIX,
        jpeg=jpeg,
    )
    error = run("openpi", CLIENT, module, url, folder / "given.npz", folder / "out.npz", token, **environment)
    return dict(np.load(folder / "out.npz")), error


def expected(engine: Engine, noise: np.ndarray, picture: np.ndarray = PICTURE) -> np.ndarray:
    observation = Observation({"base_0_rgb": picture}, STATE.astype(np.float32), "reach", 0)
    with engine.observe(observation) as prefix:
        return engine.act(prefix, noise=noise).actions


@pytest.mark.parametrize("module", CLIENTS)
def test_a_public_client_gets_the_engine_actions_to_the_bit(engine, tmp_path, module):
    answering = Answering(engine, keys_of("native", engine.policy.config.image_names))
    with serving(answering) as server:
        answers, error = asked(tmp_path, module, f"ws://127.0.0.1:{server.port}")
    plain = expected(engine, NOISES[0])
    assert answers["model"] == engine.policy.config.kind
    for name in ("plain", "again", "batch 0"):
        assert np.array_equal(answers[name], plain), name
    for number in (1, 2):
        assert np.array_equal(answers[f"batch {number}"], expected(engine, NOISES[number]))
    assert np.array_equal(answers["resized"], expected(engine, NOISES[0], resize_with_pad(LARGE, 28)))
    jpeg = np.abs(answers["jpeg"] - plain).max()
    assert 0 < jpeg < 0.5 * np.abs(plain).max()
    distances = [np.abs(answers[name][:2] - PREFIX[:2]).max() for name in ("continued", "plain")]
    assert distances[0] < 0.5 * distances[1]
    assert "images" in error and "Traceback" not in error


@pytest.mark.parametrize("module", CLIENTS)
def test_a_public_client_speaks_tls_with_a_token(engine, tmp_path, module):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    answering = Answering(engine, keys_of("native", engine.policy.config.image_names))
    with serving(answering, token="k-1", tls=tls, host="localhost") as server:
        answers, _ = asked(
            tmp_path, module, f"wss://localhost:{server.port}", "k-1", SSL_CERT_FILE=str(certificate)
        )
        assert np.array_equal(answers["plain"], expected(engine, NOISES[0]))
        with pytest.raises(AssertionError, match="401"):
            asked(tmp_path, module, f"wss://localhost:{server.port}", "k-2", SSL_CERT_FILE=str(certificate))


@contextmanager
def public_server(*modules: str) -> Iterator[str]:
    port = free_port()
    with subprocess.Popen([python("openpi"), "-c", SERVER, str(port), *modules]) as server:
        try:
            while server.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
            yield f"ws://127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.mark.parametrize("modules", SERVERS)
def test_our_client_drives_a_public_server_and_tells_its_errors(modules):
    with public_server(*modules) as url:
        client = PolicyClient(url)
        actions = client.infer({"state": STATE}, WAIT_S)
        assert np.array_equal(actions, np.tile(2 * STATE, (5, 1)).astype(np.float32))
        assert client.metadata == {"reset_pose": [0]}
        with pytest.raises(ServerError, match="KeyError: 'state'"):
            client.infer({"prompt": "no state"}, WAIT_S)
        assert len(client.infer({"state": STATE}, WAIT_S)) == 5
