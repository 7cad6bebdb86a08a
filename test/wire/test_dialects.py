"""Each public server's wire as it is documented, spoken by a stand-in, and asked by our client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from policy_servers import WAIT_S, other_server
from websockets.sync.server import ServerConnection

from vla_accel_ros.contract.sections.keys import keys_of
from vla_accel_ros.wire.arrays import pack, unpack
from vla_accel_ros.wire.client import PolicyClient
from vla_accel_ros.wire.dialects import ServerError
from vla_accel_ros.wire.keys import write

CHUNK = np.arange(32.0, dtype=np.float32).reshape(4, 8)
PICTURE = np.full((120, 160, 3), 9, np.uint8)
STATE = np.arange(8.0)


class StandIn:
    """A server of one form: sends `metadata`, and answers each message by `answer`, which may raise
    ConnectionError to close."""

    def __init__(self, metadata: dict[str, Any], answer: Callable[[dict[str, Any]], Any]) -> None:
        self.metadata, self.answer = metadata, answer
        self.paths, self.requests = list[str](), list[dict[str, Any]]()

    def __call__(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.paths.append(connection.request.path)
        connection.send(pack(self.metadata))
        for message in connection:
            assert isinstance(message, bytes)
            self.requests.append(unpack(message))
            try:
                answer = self.answer(self.requests[-1])
            except ConnectionError:
                return
            connection.send(answer if isinstance(answer, str) else pack(answer))


def request(preset: str, *images: str) -> dict[str, Any]:
    """What a robot with these pictures sends."""
    keys = keys_of(preset, images)
    return write(keys, dict.fromkeys(keys.images, PICTURE), STATE, "put it away")


def asked(stand_in: StandIn, preset: str, path: str = "", images: tuple[str, ...] = ()) -> np.ndarray:
    with other_server(stand_in) as url:
        client = PolicyClient(url + path, dialect=keys_of(preset, ()).dialect)
        return client.infer(request(preset, *images), WAIT_S)


def test_sglang_is_asked_on_its_path_with_pictures_by_name():
    server = StandIn(
        {"object": "action.metadata", "input": {"image_keys": ["base_0_rgb"]}, "capabilities": {}},
        lambda _: {"actions": CHUNK, "server_timing": {"infer_ms": 1.0}},
    )
    assert np.array_equal(asked(server, "native", "/openpi/policy", ("base_0_rgb",)), CHUNK)
    assert server.paths == ["/openpi/policy"]
    (sent,) = server.requests
    assert sent["images"]["base_0_rgb"].shape == PICTURE.shape and sent["prompt"] == "put it away"


def test_vllm_omni_has_one_session_reset_on_each_connection():
    server = StandIn(
        {"image_resolution": [180, 320], "needs_session_id": True},
        lambda message: {"status": "reset successful"} if "endpoint" in message else {"arm": CHUNK},
    )
    path = "/v1/realtime/robot/openpi"
    with other_server(server) as url:
        client = PolicyClient(url + path, dialect="vllm-omni")
        for _ in range(2):
            assert np.array_equal(client.infer(request("openpi-droid"), WAIT_S), CHUNK)
        client.close()
        client.infer(request("openpi-droid"), WAIT_S)
    resets = ["endpoint" in message for message in server.requests]
    assert resets == [True, False, False, True, False]
    assert len({message["session_id"] for message in server.requests if "session_id" in message}) == 1
    assert server.paths == [path, path]


@pytest.mark.parametrize("confirms", ["reset successful", {"status": "reset successful"}])
def test_older_and_newer_vllm_omni_confirm_a_reset(confirms):
    server = StandIn({}, lambda message: confirms if "endpoint" in message else CHUNK)
    with other_server(server) as url:
        actions = PolicyClient(url, dialect="vllm-omni").infer(request("openpi-droid"), WAIT_S)
    assert np.array_equal(actions, CHUNK)


def test_a_connection_closed_while_nobody_asked_is_made_anew_without_an_error():
    def once(connection: ServerConnection) -> None:
        connection.send(pack({}))
        connection.recv()
        connection.send(pack(CHUNK))

    with other_server(once) as url:
        client = PolicyClient(url)
        client.infer({}, WAIT_S)
        client._connection.recv_events_thread.join(WAIT_S)  # the close has come
        assert np.array_equal(client.infer({}, WAIT_S), CHUNK) and client.connections == 2


def test_picpp_gets_a_list_of_turned_pictures_and_pi06_their_names_at_the_top():
    server = StandIn({"model": "pi05", "action_steps": 5}, lambda _: {"actions": CHUNK, "server_timing": {}})
    assert np.array_equal(asked(server, "picpp"), CHUNK)
    (sent,) = server.requests
    assert [image.shape for image in sent["images"]] == [(256, 256, 3)] * 2 and sent["task"] == "put it away"
    assert sent["state"].dtype == np.float32
    asked(server, "picpp-pi06", images=("cam_high", "cam_wrist"))
    assert {"cam_high", "cam_wrist", "state", "prompt"} == set(server.requests[-1])


def galaxea(*steps: dict[str, Any]) -> StandIn:
    remaining = list(steps)

    def answer(message: dict[str, Any]) -> Any:
        return message if "__reset__" in message else remaining.pop(0)

    return StandIn({"action_steps": len(steps)}, answer)


def test_galaxea_steps_become_a_chunk_and_an_absent_gripper_holds():
    arm = [np.full(7, number, np.float32) for number in range(3)]
    server = galaxea(
        {"action": {"right_arm": arm[0]}, "need_obs": False},
        {"action": {"right_gripper": np.full(1, 0.5), "right_arm": arm[1]}, "need_obs": False},
        {"action": {"right_arm": arm[2]}, "need_obs": True},
    )
    actions = asked(server, "galaxea-droid")
    assert actions.tolist() == [[0] * 7 + [7], [1] * 7 + [0.5], [2] * 7 + [0.5]]
    reset, first, *further = server.requests
    assert reset == {"__reset__": True} and further == [{}, {}]
    assert first["images"]["dummy_wrist_right"].shape == (3, 224, 224)
    assert not first["images"]["dummy_wrist_right"].any()
    assert (first["frequency"], first["embodiment_type"]) == (15, "Droid_Franka")
    assert first["state"]["right_arm"].dtype == np.float32 and first["state"]["right_gripper"].tolist() == [7]


def test_galaxea_parts_that_the_state_has_not_are_left_and_other_names_of_them_are_known():
    parts = {"joint_position": np.full(7, 2.0), "gripper": np.ones(1), "left_gripper": np.zeros(1)}
    actions = asked(galaxea({"action": parts, "need_obs": True, "cot_text": "pick"}), "galaxea-droid")
    assert actions.tolist() == [[2] * 7 + [1]]


def test_galaxea_with_other_parts_than_the_state_is_refused():
    server = galaxea({"action": {"left_arm": np.zeros(7)}, "need_obs": True})
    with pytest.raises(ServerError, match="left_arm"):
        asked(server, "galaxea-droid")


def test_starvla_gets_an_envelope_with_its_statistics_name():
    server = StandIn(
        {"env": "x", "action_chunk_size": 4},
        lambda message: {
            "status": "ok",
            "ok": True,
            "request_id": message["request_id"],
            "data": {"actions": CHUNK[None]},
        },
    )
    with other_server(server) as url:
        observation = {**request("starvla", "front", "wrist"), "unnorm_key": "franka"}
        actions = PolicyClient(url, dialect="starvla").infer(observation, WAIT_S)
    assert np.array_equal(actions, CHUNK)
    (sent,) = server.requests
    (example,) = sent["payload"]["examples"]
    assert sent["type"] == "infer" and sent["payload"]["unnorm_key"] == "franka"
    assert len(example["image"]) == 2 and example["lang"] == "put it away" and "unnorm_key" not in example
    assert example["state"].shape == (1, 8) and example["state"].dtype == np.float32
