"""A model server of vla-eval that asks a policy server: `vla serve`, openpi's, and others.

python plugins/vla_eval/policy_server.py --port 8010 --args.url=ws://gpu:8000 \\
    --args.images='{"agentview": "base_0_rgb"}'
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_eval.model_servers.base import SessionContext
from vla_eval.model_servers.predict import PredictModelServer
from vla_eval.model_servers.serve import run_server
from vla_eval.specs import IMAGE_RGB, LANGUAGE, RAW, DimSpec

from vla_accel_ros.contract.sections.keys import keys_of
from vla_accel_ros.wire.client import PolicyClient
from vla_accel_ros.wire.keys import write


class PolicyServer(PredictModelServer):
    """url, token_file, deadline_s: of the policy server. keys: where it wants what, a preset of
    docs/guide/serve.md. images: vla-eval's name of a camera -> the preset's; None for the same names.
    chunk_size: how many actions of a chunk are executed."""

    def __init__(
        self,
        url: str = "ws://127.0.0.1:8000",
        keys: str = "native",
        images: dict[str, str] | None = None,
        token_file: str = "",
        deadline_s: float = 60.0,
        chunk_size: int = 8,
    ) -> None:
        super().__init__(chunk_size=chunk_size)
        self._images = images
        # vla-eval's pictures are upright, as a policy is shown them: turning is the clients' of a simulator.
        self._keys = replace(keys_of(keys, list((images or {}).values())), turned=False)
        self._named = keys
        token = Path(token_file).read_text().strip() if token_file else ""
        self._client, self._deadline_s = PolicyClient(url, token, self._keys.dialect), deadline_s

    def get_action_spec(self) -> dict[str, DimSpec]:
        return {"action": RAW}

    def get_observation_spec(self) -> dict[str, DimSpec]:
        return {"image": IMAGE_RGB, "language": LANGUAGE}

    def get_observation_params(self) -> dict[str, Any]:
        return {"send_state": True, "send_wrist_image": len(self._images or {}) > 1}

    def predict(self, obs: dict[str, Any], ctx: SessionContext) -> dict[str, Any]:
        """A chunk. Raises ServerError, ConnectionError and TimeoutError, which end the episode."""
        names = self._images or {name: name for name in obs["images"]}
        keys = self._keys if self._images else replace(keys_of(self._named, list(names)), turned=False)
        images = {name: obs["images"][camera] for camera, name in names.items()}
        request = write(keys, images, obs["state"], obs["task_description"])
        return {"actions": self._client.infer(request, self._deadline_s)}


if __name__ == "__main__":
    run_server(PolicyServer)
