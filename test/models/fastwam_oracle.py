"""A recorded run of lerobot's Fast-WAM: oracle.json, oracle.npz, checkpoint and wan_diffusers."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from oracle import DTYPES, FOLDER, Recording, read_folder_arrays, recorded
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.fastwam.policy import FastWAMPolicy
from vla_accel_ros.models.flow.sampling import flow_steps, flow_times
from vla_accel_ros.models.network_policy import PolicyInputs
from vla_accel_ros.types import Observation


def fastwam_names() -> list[str]:
    """`folder/checkpoint` of every recording."""
    return [
        str(config.parent.relative_to(FOLDER))
        for folder in recorded("fastwam")
        for config in sorted(folder.glob("checkpoint*/config.json"))
    ]


@dataclass(frozen=True)
class FastWAMOracle(Recording[FastWAMPolicy]):
    """See Recording."""

    @classmethod
    def load(cls, name: str, device: str = "cpu", dtype: str = "float32") -> FastWAMOracle:
        folder = FOLDER / name
        spec = json.loads((folder.parent / "oracle.json").read_text())
        policy = load_policy(folder, device, DTYPES[dtype])
        assert isinstance(policy, FastWAMPolicy)
        return cls(name, spec, read_folder_arrays(folder.parent, device), policy)

    @property
    def layers(self) -> int:
        """Of the longest way through the network."""
        config = self.policy.config
        return config.text.depth + 2 * config.depth + len(config.vae.multiples) * (config.vae.blocks + 1)

    @property
    def observation(self) -> Observation:
        names = [key.removeprefix("raw_image.") for key in self.arrays if key.startswith("raw_image.")]
        images = {name: self[f"raw_image.{name}"].cpu().numpy() for name in names}
        state = self["state"].cpu().numpy()
        return Observation(images=images, state=state, instruction=self.spec["task"], stamp_ns=0)

    @property
    def inputs(self) -> PolicyInputs:
        return self.policy.inputs(self.observation)

    @property
    def kept(self) -> dict[str, Tensor]:
        """All that the micro-requests before a step leave."""
        policy, inputs = self.policy, self.inputs
        results = policy.text_encode(inputs.tokens) | policy.vae_encode(inputs.images)
        state = (inputs.state,) if policy.config.state_dim else ()
        return results | policy.prefill(results["latents"], results["video_text"], *state)

    def features(self) -> Tensor:
        """Of the prompt's own rows."""
        return self.policy.model.text_encoder(self.inputs.tokens)

    def latents(self) -> Tensor:
        return self.policy.vae_encode(self.inputs.images)["latents"]

    def video(self) -> Tensor:
        """[2, depth, n, wide]"""
        return self.kept["video"]

    def recorded_video(self) -> Tensor:
        """As `video`, of the recording."""
        layers = range(self.policy.config.depth)
        return torch.stack([torch.stack([self[f"kv.{n}{layer}"][0] for layer in layers]) for n in "kv"])

    def velocities(self) -> Tensor:
        """[steps, 1, H, A] at the recorded states."""
        kept, scale = self._of_steps(), self.policy.config.time_scale
        steps = zip(self["steps.x_t"], self["steps.timestep"], strict=True)
        return torch.stack(
            [
                # Divided on the host, as the reference does: a GPU multiplies by the rounded inverse.
                self.policy.denoise(self._wide(x), (self._wide(t).cpu() / scale).to(x.device), **kept)
                for x, t in steps
            ]
        )

    def sampled(self) -> Tensor:
        """Normalised actions [H, A]."""
        kept, x, rule = self._of_steps(), self._wide(self["noise"]), self.policy.time_rule
        count = len(self["steps.x_t"])
        for t, size in zip(flow_times(count, rule), flow_steps(count, rule), strict=True):
            x = x + size * self.policy.denoise(x, self._wide(x.new_full((1,), t)), **kept)
        return x[0]

    def _of_steps(self) -> dict[str, Tensor]:
        return {
            name: value for name, value in self.kept.items() if name in ("action_text", "video", "joints")
        }

    def _wide(self, x: Tensor) -> Tensor:
        return x.double() if self.policy.kv_dtype == torch.float64 else x
