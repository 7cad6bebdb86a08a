"""Answers a request of openpi's protocol with an engine: one frame, one chunk.

The answer is openpi's: `actions` float32 [H, D] as the policy has them, joint velocities or a hand's
displacements included, and `policy_timing`. A request may add what openpi's does not have:

noise: float [H, A], so that the same request gives the same actions to the bit.
delay, action_prefix: real-time chunking. The robot will have executed the first `delay` of action_prefix,
    float [n, D] in the units of `actions`, when the answer arrives. The new chunk begins with them if the
    policy was trained for that, and is guided to agree with all of action_prefix otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from vla_accel_ros.contract.sections.keys import Keys
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.flow.rtc import Guidance
from vla_accel_ros.models.micro_requests import DENOISE
from vla_accel_ros.types import Observation
from vla_accel_ros.wire.keys import images_in, pictures, prompt_in, state_in, vector


class Answering:
    """An engine behind openpi's protocol; any number of threads may ask, whose frames and chunks share it.

    keys: of the clients. prompt: for requests without one, "" to refuse them. Raises ValueError if the keys
    have a picture that the policy has not.
    """

    def __init__(self, engine: Engine, keys: Keys, prompt: str = "") -> None:
        pictures(keys, engine.policy.config.image_names)
        self.engine, self._keys, self._prompt = engine, keys, prompt

    def metadata(self) -> dict[str, Any]:
        """What a client gets first."""
        policy = self.engine.policy
        return {
            "model": policy.config.kind,
            "image_names": list(policy.config.image_names),
            "image_size": policy.image_size,
            "action_horizon": getattr(policy.config, "horizon", 1),
            "action_dim": policy.joints,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to an observation. Raises ValueError, in one sentence, if the request is wrong."""
        begun_s = time.perf_counter()
        policy = self.engine.policy
        images = images_in(request, self._keys, policy.config.image_names)
        prompt = prompt_in(request, self._keys, self._prompt)
        state = state_in(request, self._keys)
        with self.engine.observe(Observation(images, state, prompt, time.time_ns())) as prefix:
            chunk = self.engine.act(prefix, **self._wishes(request, state))
        infer_ms = 1e3 * (time.perf_counter() - begun_s)
        return {"actions": chunk.actions, "policy_timing": {"infer_ms": infer_ms}}

    def _wishes(self, request: Mapping[str, Any], state: Any) -> dict[str, Any]:
        policy, wishes = self.engine.policy, dict[str, Any]()
        if "noise" in request:
            wishes["noise"] = vector(request["noise"], ("noise",), 2)
        if "action_prefix" not in request and "delay" not in request:
            return wishes
        if policy.chain.acts != DENOISE:
            raise ValueError(
                f"delay and action_prefix: {policy.config.kind} denoises nothing and cannot continue"
            )
        prefix = vector(request.get("action_prefix"), ("action_prefix",), 2)
        delay = request.get("delay", 0)
        if isinstance(delay, bool) or not isinstance(delay, int) or prefix.ndim != 2:
            raise ValueError("delay is a whole number, and action_prefix [n, D]")
        if not 0 <= delay <= len(prefix) or prefix.shape[1] != policy.joints:
            raise ValueError(
                f"delay is {delay} and action_prefix {list(prefix.shape)}: send [n, {policy.joints}] with "
                "n of at least delay"
            )
        if len(prefix):
            steps = self.engine.config.steps
            wishes |= Guidance.continuing(policy, prefix, delay, len(prefix), state, steps)
        return wishes
