"""The policy: each observation of a batch is a request, each chunk of actions an answer.

A server that is late or gone ends LeRobot's run with a sentence: LeRobot has nothing that could hold the arm.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from lerobot_policy_vla_accel.configuration_vla_accel import VlaAccelConfig
from vla_accel_ros.contract.sections.keys import keys_of
from vla_accel_ros.wire.client import PolicyClient
from vla_accel_ros.wire.keys import write


class VlaAccelPolicy(PreTrainedPolicy):
    """See the module docstring. Has no weights, and is not trained."""

    config_class = VlaAccelConfig
    name = "vla_accel"

    def __init__(self, config: VlaAccelConfig, **_: Any) -> None:
        super().__init__(config)
        config.validate_features()
        self._images = {key.rpartition(".")[2]: key for key in config.image_features}
        self._keys = keys_of(config.keys, list(self._images))
        if not set(self._images) <= set(self._keys.images):
            raise ValueError(
                f"the pictures are {', '.join(self._images)}, but {config.keys} has "
                f"{', '.join(self._keys.images)}: give --rename_map"
            )
        token = Path(config.token_file).read_text().strip() if config.token_file else ""
        self._client = PolicyClient(config.url, token, self._keys.dialect)
        self.reset()

    @classmethod
    def from_pretrained(cls, pretrained_name_or_path: Any, *, config: Any = None, **_: Any) -> VlaAccelPolicy:
        """The policy of a folder with a config.json; there are no weights."""
        config = config or VlaAccelConfig.from_pretrained(pretrained_name_or_path)
        return cls(config).eval()

    def _save_pretrained(self, save_directory: Path, state_dict: Any = None) -> None:
        self.config._save_pretrained(save_directory)

    def reset(self) -> None:
        """A new episode: the server, too, begins anew if its dialect can."""
        self._actions: deque[Tensor] = deque()
        self._client.close()

    def supports_rtc(self) -> bool:
        return self.config.rtc

    @torch.no_grad()
    def predict_action_chunk(
        self,
        batch: dict[str, Tensor],
        inference_delay: int | None = None,
        prev_chunk_left_over: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """float32 [B, H, D]. prev_chunk_left_over: [n, D] of one robot, which executes the first
        inference_delay of them meanwhile; LeRobot fills it up with zeros."""
        states = batch["observation.state"].float().cpu().numpy()
        pictures = {name: _pictures(batch[key]) for name, key in self._images.items()}
        further: dict[str, Any] = {}
        if prev_chunk_left_over is not None:
            prefix = prev_chunk_left_over.float().cpu().numpy()
            prefix = prefix[: 1 + max(np.flatnonzero(prefix.any(axis=1)), default=-1)]
            delay = min(inference_delay or 0, len(prefix))
            further = {"action_prefix": prefix if self._keys.agreeing else prefix[:delay], "delay": delay}
        chunks = []
        for index, (state, task) in enumerate(zip(states, _tasks(batch, len(states)), strict=True)):
            images = {name: values[index] for name, values in pictures.items()}
            request = write(self._keys, images, state, task) | further
            chunks.append(self._client.infer(request, self.config.deadline_s))
        return torch.from_numpy(np.stack(chunks)).to(self.config.device)

    @torch.no_grad()
    def select_action(self, batch: dict[str, Tensor], **_: Any) -> Tensor:
        """float32 [B, D]; asks the server when the actions of the last chunk are executed."""
        if not self._actions:
            chunk = self.predict_action_chunk(batch)
            self._actions.extend(chunk.transpose(0, 1)[: self.config.n_action_steps])
        return self._actions.popleft()

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict | None]:
        raise NotImplementedError("a policy server is not trained from here")

    def get_optim_params(self) -> dict:
        raise NotImplementedError("a policy server is not trained from here")


def _pictures(values: Tensor) -> np.ndarray:
    """uint8 [B, H, W, 3] of float [B, 3, H, W] in 0 to 1."""
    pixels = (values.float() * 255.0).round().clamp(0, 255).to(torch.uint8)
    return np.ascontiguousarray(pixels.permute(0, 2, 3, 1).cpu().numpy())


def _tasks(batch: dict[str, Any], count: int) -> list[str]:
    tasks = batch.get("task") or ""
    return [tasks] * count if isinstance(tasks, str) else list(tasks)
