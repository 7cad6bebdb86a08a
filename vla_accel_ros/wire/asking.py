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
from vla_accel_ros.types import Chunk, Observation
from vla_accel_ros.wire.client import ServerError
from vla_accel_ros.wire.keys import Keys, keys_of, write


class Client(Protocol):
    """See PolicyClient."""

    def infer(self, request: Mapping[str, Any], deadline_s: float) -> np.ndarray: ...


def keys_for(contract: Contract, name: str) -> Keys:
    """The keys of a preset, for a contract's cameras. Raises ValueError for an unknown preset, a camera that
    is no picture of it, and answers that cannot move joints."""
    images = [camera.image for camera in contract.cameras]
    keys = keys_of(name, images)
    if keys.unfit:
        raise ValueError(
            f"the answers of {name} are {keys.unfit}, which a contract cannot take: use a policy that "
            "answers with absolute positions of joints"
        )
    if unknown := sorted(set(images) - set(keys.names)):
        raise ValueError(
            f"the contract has the images {unknown}, but the keys {name} have {list(keys.names)}: give each "
            "camera's `image` one of these"
        )
    return keys


class Asking:
    """Makes chunks of observations. deadline_s: of an answer, 0 for as long as it would be of use."""

    def __init__(self, contract: Contract, keys: Keys, client: Client, deadline_s: float) -> None:
        self._contract, self._keys, self._client = contract, keys, client
        self._deadline_s = min(deadline_s or contract.chunk.max_age_s, contract.chunk.max_age_s)
        self._number = 0

    def chunk(self, observation: Observation, now_ns: Callable[[], int]) -> Chunk:
        """The chunk of an observation. Raises TimeoutError, ConnectionError, ServerError and, for an
        observation that cannot be sent, ValueError."""
        contract = self._contract
        request = write(self._keys, observation.images, observation.state, observation.instruction)
        observation.check_intact()
        actions = self._client.infer(request, self._deadline_s)
        joints = len(contract.action_names)
        if actions.shape[1] != joints:
            raise ServerError(
                f"an action of the server has {actions.shape[1]} numbers, the contract has {joints} joints"
            )
        if now_ns() - observation.stamp_ns > contract.chunk.max_age_s * 1e9:
            raise TimeoutError(f"an answer came later than chunk.max_age_s, {contract.chunk.max_age_s:g} s")
        self._number += 1
        return Chunk(
            actions=actions,
            stamp_ns=observation.stamp_ns,
            step_dt_s=contract.chunk.step_dt_s,
            kv_version=self._number,
            request_id=self._number,
            update_magnitudes=np.zeros(len(actions), np.float32),
            state=np.asarray(observation.state, np.float32),
        )
