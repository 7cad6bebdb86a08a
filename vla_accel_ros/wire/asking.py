"""A robot's chunks from a policy server: what is sent of an observation, and what is taken of an answer.

An answer is a chunk of absolute positions in the units of the policy's training, as the contract has them.
Its actions are due from the observation's stamp on, however long it took; one that comes when its observation
is too old for the contract is dropped. Limits, blending and stops are those of every chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.contract.sections.keys import HANDS, JOINTS, TWIST, VELOCITIES
from vla_accel_ros.types import Chunk, Observation
from vla_accel_ros.wire.continuing import Continuing
from vla_accel_ros.wire.dialects import ServerError
from vla_accel_ros.wire.keys import split, write

FIXES = {
    JOINTS: "write actions: joints, and for each joint action: absolute",
    VELOCITIES: "write for each joint action: velocity and per_unit",
    HANDS: "write actions: hands, and its section hands",
    TWIST: "write actions: twist, and its section twist",
}
"""What a contract says for answers of each kind."""


class Client(Protocol):
    """See PolicyClient."""

    def infer(self, request: Mapping[str, Any], deadline_s: float) -> np.ndarray: ...


def check_keys(contract: Contract) -> None:
    """Raises ValueError if a camera is no picture of the contract's keys, the state has another length, or
    the answers cannot move its joints."""
    keys, images = contract.keys, [picture.image for picture in contract.pictures]
    velocities = any(joint.action == "velocity" for joint in contract.action_joints)
    actions = VELOCITIES if velocities else contract.actions
    if keys.answers not in ("", actions):
        raise ValueError(
            f"the contract's actions are {actions}, but its keys are of a server that answers with "
            f"{keys.answers}: {FIXES[keys.answers]}, or write answers: {actions} in keys if this server's "
            "policy is trained otherwise"
        )
    if unknown := sorted(set(images) - set(keys.images)):
        raise ValueError(
            f"the contract has the images {unknown}, but its keys have {list(keys.images)}: give each "
            "camera's `image` one of these, or write keys: images: {IMAGE: KEY}"
        )
    if keys.continues and contract.layout is not None:
        raise ValueError(
            f"keys.continues is for positions of joints, but the contract's actions are {actions}"
        )
    split(keys, np.zeros(len(contract.state_names)))


class Asking:
    """Makes chunks of observations. deadline_s: of an answer, 0 for as long as it would be of use.
    continuing: used if the contract's server continues chunks. Raises ValueError if the contract's keys do
    not fit it."""

    def __init__(
        self, contract: Contract, client: Client, deadline_s: float, continuing: Continuing | None = None
    ) -> None:
        check_keys(contract)
        self._contract, self._client = contract, client
        self.continuing = continuing if contract.keys.continues else None
        self._deadline_s = min(deadline_s or contract.chunk.max_age_s, contract.chunk.max_age_s)
        self._number = 0

    def chunk(self, observation: Observation, now_ns: Callable[[], int]) -> Chunk:
        """The chunk of an observation. Raises TimeoutError, ConnectionError, ServerError and, for an
        observation that cannot be sent, ValueError."""
        contract = self._contract
        request = write(contract.keys, observation.images, observation.state, observation.instruction)
        observation.check_intact()
        continuing = self.continuing
        continued = {} if continuing is None else continuing.request(observation, contract.keys.agreeing)
        actions = self._client.infer(request | continued, self._deadline_s)
        joints = len(contract.action_names)
        if actions.shape[1] != joints:
            raise ServerError(
                f"an action of the server has {actions.shape[1]} numbers, the contract has {joints} joints"
            )
        if now_ns() - observation.stamp_ns > contract.chunk.max_age_s * 1e9:
            raise TimeoutError(f"an answer came later than chunk.max_age_s, {contract.chunk.max_age_s:g} s")
        self._number += 1
        chunk = Chunk(
            actions=actions,
            stamp_ns=observation.stamp_ns,
            step_dt_s=contract.chunk.step_dt_s,
            kv_version=self._number,
            request_id=self._number,
            update_magnitudes=np.zeros(len(actions), np.float32),
            state=np.asarray(observation.state, np.float32),
        )
        if continuing is not None:
            continuing.made(chunk, observation.instruction, continued, now_ns())
        return chunk
