"""The client against our server and against servers that behave as others do, or badly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from policy_servers import WAIT_S, other_server, serving
from websockets.sync.server import ServerConnection

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.sections.keys import PRESETS
from vla_accel_ros.nodes.running.environment import demo_contract
from vla_accel_ros.types import Observation
from vla_accel_ros.wire.arrays import pack
from vla_accel_ros.wire.asking import Asking
from vla_accel_ros.wire.client import PolicyClient
from vla_accel_ros.wire.dialects import ServerError
from vla_accel_ros.wire.keys import resize_with_pad, write

ACTIONS = np.arange(12.0).reshape(4, 3)


def answering(*answers: Any, metadata: Any = None) -> Callable[[ServerConnection], None]:
    """Sends the metadata, then these answers: bytes and texts as they are, anything else packed."""

    def handle(connection: ServerConnection) -> None:
        connection.send(pack(metadata or {}))
        for answer in answers:
            connection.recv()
            connection.send(answer if isinstance(answer, (bytes, str)) else pack(answer))
        for _ in connection:
            pass  # no answer

    return handle


ANSWERS = {
    "openpi": {"actions": ACTIONS, "server_timing": {"infer_ms": 1.0}},
    "action_chunk": {"action_chunk": ACTIONS},
    "a bare array": ACTIONS,
    "vLLM-Omni, by name": {"arm": ACTIONS.astype(np.float32)},
    "vLLM-Omni, a batch of one": ACTIONS[None].astype(np.float32),
    "a batch of one by name": {"arm": ACTIONS[None]},
    "SGLang": {"request_id": None, "actions": ACTIONS, "parameters": {"num_inference_steps": 10}},
    "StarVLA": {"status": "ok", "ok": True, "data": {"actions": ACTIONS[None]}},
    "lists": {"actions": ACTIONS.tolist()},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_actions_are_found_in_the_answers_of_others(answer):
    with other_server(answering(answer)) as url:
        actions = PolicyClient(url).infer({"prompt": "a"}, WAIT_S)
    assert actions.dtype == np.float32 and np.array_equal(actions, ACTIONS)


ERRORS = {
    "openpi's traceback": (
        "Traceback (most recent call last):\n ...\nKeyError: 'state'",
        "KeyError: 'state'",
    ),
    "vLLM-Omni": ({"type": "error", "message": "no session"}, "no session"),
    "SGLang's traceback": (
        {"error": "Traceback (most recent call last):\n" + 30 * " ...\n" + "RuntimeError: memory is full\n"},
        "memory is full",
    ),
    "a batch of two": ({"actions": np.stack([ACTIONS, ACTIONS])}, "[2, 4, 3]"),
    "vLLM-Omni, more parts": ({"arm": ACTIONS, "hand": ACTIONS}, "arm, hand"),
    "Galaxea": ({"error": {"code": 1, "message": "bad task"}}, "bad task"),
    "StarVLA": ({"status": "error", "ok": False, "error": {"message": "no image"}}, "no image"),
    "no actions": ({"status": "reset successful"}, "status"),
    "one step": ({"actions": ACTIONS[0]}, "[3]"),
    "no numbers": ({"actions": np.array([["a"]])}, "<U1"),
    "not finite": ({"actions": np.full((2, 2), np.nan)}, "not finite"),
    "too large for float32": ({"actions": np.full((2, 2), 1e300)}, "not finite"),
    "objects": (
        b"\x81\xa7actions\x84\xc4\x0b__ndarray__\xc3\xc4\x04data\xc4\x08AAAAAAAA\xc4\x05dtype\xa2|O\xc4\x05shape\x91\x01",
        "|O",
    ),
    "no message": (b"\xc1", "cannot be read"),
    "an error of numbers": ({"error": np.ones(2)}, "1.0"),
    "an error of several lines": ({"error": "no\nimage"}, "no image"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_and_useless_answers_are_told_and_the_next_request_connects_anew(name):
    answer, fact = ERRORS[name]
    with other_server(answering(answer, ANSWERS["openpi"])) as url:
        client = PolicyClient(url)
        with pytest.raises(ServerError) as error:
            client.infer({}, WAIT_S)
        assert fact in str(error.value) and len(str(error.value)) < 500
        with pytest.raises(ServerError):
            client.infer({}, WAIT_S)  # the same again, of a new connection
        assert client.connections == 2


class Late:
    """Answers in order of `go`."""

    def __init__(self) -> None:
        self.go, self.number = threading.Event(), 0

    def metadata(self) -> dict[str, Any]:
        return {}

    def answer(self, request: Any) -> dict[str, Any]:
        self.number += 1
        if request["wait"]:
            assert self.go.wait(WAIT_S)
        return {"actions": np.full((2, 2), request["number"])}


def test_a_late_answer_is_never_taken_for_the_next():
    answers = Late()
    with serving(answers) as server:
        client = PolicyClient(f"ws://127.0.0.1:{server.port}")
        with pytest.raises(TimeoutError):
            client.infer({"wait": True, "number": 1}, 0.05)
        answers.go.set()
        assert (client.infer({"wait": False, "number": 2}, WAIT_S) == 2).all()
        assert client.connections == 2


def test_a_close_ends_another_thread_wait_and_leaves_no_thread():
    received, before = threading.Event(), threading.active_count()

    def silent(connection: ServerConnection) -> None:
        connection.send(pack({}))
        connection.recv()
        received.set()
        for _ in connection:
            pass

    with other_server(silent) as url:
        client, errors = PolicyClient(url), list[Exception]()

        def ask() -> None:
            with pytest.raises(ConnectionError) as error:
                client.infer({}, 10 * WAIT_S)
            errors.append(error.value)

        thread = threading.Thread(target=ask)
        thread.start()
        assert received.wait(WAIT_S)
        client.close()
        thread.join(WAIT_S)
        assert len(errors) == 1
    for reader in threading.enumerate():
        if reader is not threading.current_thread() and "recv" in reader.name:
            reader.join(WAIT_S)
    assert threading.active_count() <= before


def test_a_server_that_is_gone_is_told_and_found_again():
    answers = Late()
    with serving(answers) as server:
        port = server.port
        client = PolicyClient(f"ws://127.0.0.1:{port}")
        client.infer({"wait": False, "number": 1}, WAIT_S)
    for _ in range(2):
        with pytest.raises(ConnectionError, match=str(port)):
            client.infer({"wait": False, "number": 2}, WAIT_S)
    with serving(answers, port=port):
        assert (client.infer({"wait": False, "number": 3}, WAIT_S) == 3).all()


def test_another_model_behind_the_address_is_not_used_before_somebody_has_looked():
    models = iter(({"model": "a", "dim": 2}, {"model": "b", "dim": 2}, {"model": "b", "dim": 2}))

    def handle(connection: ServerConnection) -> None:
        connection.send(pack(next(models)))
        connection.recv()
        connection.send(pack(ANSWERS["openpi"]))

    with other_server(handle) as url:
        client = PolicyClient(url)
        client.infer({}, WAIT_S)
        client.close()
        with pytest.raises(ServerError, match="model: a, now b"):
            client.infer({}, WAIT_S)
        client.forget()
        assert np.array_equal(client.infer({}, WAIT_S), ACTIONS)


def test_what_is_no_policy_server_is_told():
    def silent(connection: ServerConnection) -> None:
        connection.recv()

    with other_server(silent) as url, pytest.raises(TimeoutError):
        PolicyClient(url).infer({}, 0.1)
    hello = other_server(lambda connection: connection.send("hello"))
    with hello as url, pytest.raises(ServerError, match="hello"):
        PolicyClient(url).infer({}, WAIT_S)


def test_pictures_are_resized_as_openpi_client_does():
    """Checksums of openpi_client.image_tools.resize_with_pad, 0.1.2, of these pictures."""
    for (height, width), expected in RESIZED.items():
        picture = (np.arange(height * width * 3) * 7 % 251).astype(np.uint8).reshape(height, width, 3)
        resized = resize_with_pad(picture, 224)
        assert (
            int(resized.sum(dtype=np.int64)),
            int((resized.ravel() * np.arange(resized.size)).sum()),
        ) == expected


RESIZED = {
    (480, 640): (14116878, 1062490747014),
    (720, 1280): (10584418, 796621828822),
    (640, 480): (14115748, 1062412850198),
    (100, 100): (18810269, 1415928974099),
    (224, 300): (14027625, 1051105650897),
    (37, 53): (13096882, 986901374379),
}


def test_a_request_has_the_form_of_the_preset():
    picture = np.zeros((120, 160, 3), np.uint8)
    picture[0, 0] = 255
    droid = write(
        PRESETS["openpi-droid"],
        {"exterior_image_1_left": picture, "wrist_image_left": picture},
        np.arange(8.0),
        "go",
    )
    assert droid["observation/joint_position"].tolist() == list(range(7))
    assert droid["observation/gripper_position"].tolist() == [7.0] and droid["prompt"] == "go"
    assert droid["observation/wrist_image_left"].shape == (224, 224, 3)
    aloha = write(PRESETS["openpi-aloha"], {"cam_high": picture}, np.zeros(14), "go")
    assert {name: image.shape for name, image in aloha["images"].items()} == {"cam_high": (3, 224, 224)}
    libero = write(PRESETS["openpi-libero"], {"image": picture, "wrist_image": picture}, np.zeros(8), "go")
    assert libero["observation/image"][-29, -1].any() and not libero["observation/image"][28, 0].any()
    with pytest.raises(ValueError, match="wrist_image_left"):
        write(PRESETS["openpi-droid"], {"exterior_image_1_left": picture}, np.zeros(8), "go")


@pytest.mark.parametrize(
    ("preset", "fact"),
    [("openpi-droid", "velocities"), ("openpi-libero", "actions: hands"), ("openpi-aloha", "base_0_rgb")],
)
def test_a_contract_that_its_keys_do_not_fit_is_refused(preset, fact):
    contract = replace(Contract.load(demo_contract()), keys=PRESETS[preset])
    with pytest.raises(ValueError, match=fact):
        Asking(contract, Fixed(np.zeros((5, 6))), 0.0)


class Fixed:
    """A client whose answer is given."""

    def __init__(self, actions: np.ndarray) -> None:
        self.actions = actions

    def infer(self, request: Any, deadline_s: float) -> np.ndarray:
        return self.actions


def test_a_chunk_is_due_from_its_observation_and_dropped_when_too_old():
    contract = Contract.load(demo_contract())
    images = {camera.image: np.zeros((8, 8, 3), np.uint8) for camera in contract.cameras}
    observation = Observation(images, np.zeros(6, np.float32), "go", 1_000_000_000)
    asking = Asking(contract, Fixed(np.zeros((5, 6), np.float32)), 0.0)
    chunk = asking.chunk(observation, lambda: observation.stamp_ns + 1)
    assert (chunk.stamp_ns, chunk.step_dt_s) == (observation.stamp_ns, contract.chunk.step_dt_s)
    with pytest.raises(TimeoutError):
        asking.chunk(observation, lambda: observation.stamp_ns + round(contract.chunk.max_age_s * 1e9) + 1)
    with pytest.raises(ServerError, match="7 numbers"):
        Asking(contract, Fixed(np.zeros((5, 7))), 0.0).chunk(observation, lambda: 0)


def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next():
    def twice(connection: ServerConnection) -> None:
        connection.send(pack({}))
        for _ in connection:
            for _ in range(2):
                connection.send(pack({"actions": ACTIONS}))

    with other_server(twice) as url:
        client = PolicyClient(url)
        with pytest.raises(ServerError, match="nobody asked"):
            for _ in range(50):  # the first ones may be faster than the answer to many
                client.infer({}, WAIT_S)
        assert np.array_equal(client.infer({}, WAIT_S), ACTIONS) and client.connections == 2


def test_a_server_that_does_not_read_is_late():
    tried, in_time = threading.Event(), SimpleQueue[bool]()

    def deaf(connection: ServerConnection) -> None:
        connection.send(pack({}))
        with connection.protocol_mutex:  # its reader waits
            in_time.put(tried.wait(WAIT_S))

    with other_server(deaf) as url:
        with pytest.raises(TimeoutError):
            PolicyClient(url).infer({"state": np.zeros(24 << 20, np.uint8)}, 0.1)
        tried.set()
        assert in_time.get(timeout=WAIT_S)
