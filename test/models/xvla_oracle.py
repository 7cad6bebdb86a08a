"""A recorded run of lerobot's X-VLA: a folder with oracle.json, oracle.npz and checkpoints.

A checkpoint without processors gets those of the first that has them; each is loaded as a user would load it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from oracle import DTYPES, FOLDER, Recording, read_folder_arrays, recorded
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.network_policy import PolicyInputs
from vla_accel_ros.models.xvla.policy import XVLAPolicy
from vla_accel_ros.types import Observation


def xvla_names() -> list[str]:
    """`folder/checkpoint` of every recording."""
    return [
        str(weights.parent.relative_to(FOLDER))
        for folder in recorded("xvla")
        for weights in sorted(folder.glob("checkpoint*/model.safetensors"))
    ]


def whole_folder(name: str, place: Path) -> Path:
    """A copy of a checkpoint with processors and tokenizer."""
    folder = FOLDER / name
    whole = next(path.parent for path in sorted(folder.parent.glob("checkpoint*/policy_preprocessor.json")))
    shutil.copytree(whole, place)
    shutil.copytree(folder, place, dirs_exist_ok=True)
    return place


@dataclass(frozen=True)
class XVLAOracle(Recording[XVLAPolicy]):
    """See Recording."""

    @classmethod
    def load(cls, name: str, place: Path, device: str = "cpu", dtype: str = "") -> XVLAOracle:
        folder = whole_folder(name, place) if not place.exists() else place
        spec = json.loads((FOLDER / name).parent.joinpath("oracle.json").read_text())
        policy = load_policy(folder, device, DTYPES[dtype or spec.get("dtype", "float32")])
        assert isinstance(policy, XVLAPolicy)
        return cls(name, spec, read_folder_arrays((FOLDER / name).parent, device), policy)

    @property
    def layers(self) -> int:
        """Of the longest way through the network."""
        config = self.policy.config
        return 2 * sum(config.vision.depths) + config.text.depth + config.depth

    @property
    def observation(self) -> Observation:
        names = [key.removeprefix("raw_image.") for key in self.arrays if key.startswith("raw_image.")]
        images = {name: self[f"raw_image.{name}"].cpu().numpy() for name in names}
        state = self["state"].cpu().numpy()
        return Observation(images=images, state=state, instruction=self.spec["task"], stamp_ns=0)

    @property
    def inputs(self) -> PolicyInputs:
        return self.policy.inputs(self.observation)

    def image_tokens(self) -> Tensor:
        """[views, n, W]"""
        seen = self.policy.encode(self.inputs.images)["seen"]
        return seen.unflatten(0, (-1, self.policy.config.image_tokens))

    def features(self) -> Tensor:
        """Of the main view and the prompt, [1, n + L, W]."""
        return self.policy.model.prefix(self.image_tokens()[None], self.inputs.tokens[None])[0]

    def predictions(self) -> Tensor:
        """Clean actions [steps, 1, H, A] at the recorded states."""
        inputs, model = self.inputs, self.policy.model
        rows = self._rows(inputs, inputs.more["domain"])
        steps = zip(self["steps.x_t"], self["steps.t"], self["steps.proprio"], strict=True)
        domain = inputs.more["domain"]
        return torch.stack(
            [model.denoise(self._wide(x), self._wide(t), state, rows, domain) for x, t, state in steps]
        )

    def sampled(self, noise: str = "noise", domains: str = "model_in.domain_id") -> Tensor:
        """Actions [B, H, D] as the reference gives them, of robots of these domains."""
        policy, inputs, steps = self.policy, self.inputs, len(self["steps.t"])
        domain, x1 = self[domains], self._wide(self[noise])
        rows = self._rows(inputs, domain)
        state = inputs.state[None].expand(len(domain), -1)
        x, dt = x1, self._wide(torch.full((1,), -1.0 / steps, device=x1.device))
        for step in range(steps):
            t = self._wide(torch.full((1,), 1.0 - step / steps, device=x1.device)).expand(len(domain))
            x = x + dt * policy.denoise(x, t, dt, x1, state, rows, domain)
        actions = [torch.from_numpy(policy.actions(row, inputs.state.cpu().numpy())) for row in x]
        return torch.stack(actions).to(x.device)

    def _rows(self, inputs: PolicyInputs, domain: Tensor) -> Tensor:
        words, others = self.policy.model.prefix(self.image_tokens()[None], inputs.tokens[None])
        many = len(domain)
        return self.policy.model.transformer.rows(
            words.expand(many, -1, -1), others.expand(many, -1, -1), domain
        )

    def _wide(self, x: Tensor) -> Tensor:
        return x.double() if self.policy.kv_dtype == torch.float64 else x
