"""A recorded run of a GR00T reference implementation: a folder with oracle.json, oracle.npz and checkpoints.

The reference ran two frames of one robot with the recorded noise. Each checkpoint in the folder that has
weights is loaded as a user would load it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import torch
from oracle import DTYPES, FOLDER, Recording, read_folder_arrays
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.groot.model import Prompt
from vla_accel_ros.models.groot.policy import GrootPolicy
from vla_accel_ros.models.network_policy import PolicyInputs
from vla_accel_ros.types import Observation


def groot_names() -> list[str]:
    """`folder/checkpoint` of every recording with weights."""
    files = (
        file
        for file in sorted(FOLDER.glob("*/oracle.json"))
        if "GR00T" in json.loads(file.read_text())["family"]
    )
    weights = (path for file in files for path in sorted(file.parent.glob("checkpoint*/*.safetensors")))
    return list(dict.fromkeys(str(path.parent.relative_to(FOLDER)) for path in weights))


@dataclass(frozen=True)
class GrootOracle(Recording[GrootPolicy]):
    """has_units: whether the checkpoint says how numbers are normalised, which NVIDIA's N1.5 does not."""

    has_units: bool

    @classmethod
    def load(cls, name: str, device: str = "cpu", dtype: str = "") -> GrootOracle:
        folder = FOLDER / name
        spec = json.loads((folder.parent / "oracle.json").read_text())
        has_units = "N1.7" in spec["family"] or (folder / "policy_preprocessor.json").is_file()
        tag = {} if has_units else {"normalize": False, "statistics": spec["sizes"]["tag"]}
        policy = load_policy(folder, device, DTYPES[dtype or spec.get("dtype", "float32")], **tag)
        assert isinstance(policy, GrootPolicy)
        return cls(name, spec, read_folder_arrays(folder.parent, device), policy, has_units)

    @property
    def layers(self) -> int:
        """Of the longest way through the network."""
        config = self.policy.config
        return config.vision.depth + config.text.depth + config.mixer.depth + config.dit.depth

    def observation(self, frame: str = "") -> Observation:
        """frame: "", or "second_" for the other one."""
        names = self.policy.config.image_names
        images = {
            names[i]: self[f"{frame}image_{i}"].cpu().numpy() for i in range(len(self.spec["sizes"]["cams"]))
        }
        state = self[f"{frame}state"].cpu().numpy()
        return Observation(images=images, state=state, instruction=self.spec["instruction"], stamp_ns=0)

    def inputs(self, frame: str = "") -> PolicyInputs:
        """Of a frame, with the recorded state."""
        inputs = self.policy.inputs(self.observation(frame))
        return inputs if self.has_units else replace(inputs, state=self["state_normalised"][0, 0])

    def image_tokens(self) -> Tensor:
        """[n, W]"""
        inputs = self.inputs()
        return self.policy.encode(inputs.images, inputs.more["sizes"])["seen"]

    def prompt(self, frame: str = "") -> Prompt:
        """Embedded."""
        inputs = self.inputs(frame)
        encoded = self.policy.encode(inputs.images, inputs.more["sizes"])
        return self.policy.embed_prompt(encoded["seen"], encoded["taps"], inputs.tokens, inputs.more["sizes"])

    def features(self) -> Tensor:
        """What the action head reads, [1, T, W]."""
        return self.policy.model.features(self.prompt())

    def velocities(self) -> Tensor:
        """[steps, 1, H, A] at the recorded states, forward in time as recorded."""
        inputs, kv = self.inputs(), self._prefix("")
        steps = zip(self["noisy_actions"], self._times(), strict=True)
        return torch.stack([-self._velocity(self._wide(x), t, inputs, kv) for x, t in steps])

    def raw(self, frame: str = "") -> Tensor:
        """Sampled [1, H, A]."""
        inputs, kv, x = self.inputs(frame), self._prefix(frame), self._wide(self["noise"])
        times = self._times()
        for t in times:
            x = x + -1.0 / len(times) * self._velocity(x, t, inputs, kv)
        return x

    def actions(self, frame: str = "") -> Tensor:
        """In the robot's units, [steps, D]."""
        raw = self.raw(frame)[0].float()
        return torch.from_numpy(self.policy.actions(raw, self.observation(frame).state)).to(raw.device)

    def _prefix(self, frame: str) -> dict[str, Any]:
        inputs = self.inputs(frame)
        encoded = self.policy.encode(inputs.images, inputs.more["sizes"])
        return self.policy.prefill(encoded["seen"], encoded["taps"], inputs.tokens, inputs.more["sizes"])

    def _velocity(self, x: Tensor, t: float, inputs: PolicyInputs, prefix: dict[str, Any]) -> Tensor:
        state, number = inputs.state[None], inputs.more["embodiment"]
        return self.policy.denoise(x, torch.full((1,), t), **prefix, state=state, embodiment=number)

    def _times(self) -> list[float]:
        return flow_times(len(self["timesteps"]), self.policy.time_rule)

    def _wide(self, x: Tensor) -> Tensor:
        return x.double() if self.policy.model.dtype == torch.float64 else x
