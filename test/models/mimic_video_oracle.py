"""A recorded run of mimic-video's own code: a folder with oracle.json, oracle.npz and a checkpoint.

It was run with the features of several steps of the video (`stops`); each is loaded as a user would load it,
with the settings of its training from oracle.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from oracle import DTYPES, FOLDER, Recording, read_folder_arrays, recorded
from torch import Tensor

from vla_accel_ros.models.checkpoints.checkpoint import load_policy
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.mimic_video.policy import MimicVideoPolicy
from vla_accel_ros.models.network_policy import PolicyInputs
from vla_accel_ros.types import Observation


def settings_of(spec: dict[str, Any], stop: int = 0) -> str:
    """What a user says of the recording's training."""
    sizes, rope = spec["sizes"], "rope_{}={}".format
    video = spec.get("video_net", {}) | sizes["vid"]
    stretches = [rope(axis, video.get(f"rope_{axis}_extrapolation_ratio", 1.0)) for axis in "thw"]
    return " ".join(
        [
            "image_size={}x{}".format(*sizes["hw"]),
            f"img_horizon={sizes['T']} text_tokens={sizes['tok']} xattn_layer_idx={sizes['xattn']}",
            f"num_sampling_step={sizes['nss']} stop_after_step={stop}",
            *stretches,
        ]
    )


def mimic_video_runs() -> list[str]:
    """`folder stop` of every recording."""
    return [
        f"{folder.name} {stop}"
        for folder in recorded("mimic-video")
        for stop in json.loads((folder / "oracle.json").read_text())["sizes"]["stops"]
    ]


@dataclass(frozen=True)
class MimicVideoOracle(Recording[MimicVideoPolicy]):
    """name: see mimic_video_runs."""

    @classmethod
    def load(cls, run: str, device: str = "cpu", dtype: str = "") -> MimicVideoOracle:
        name, stop = run.rsplit(" ", 1)
        folder = FOLDER / name
        spec = json.loads((folder / "oracle.json").read_text())
        said = settings_of(spec, int(stop))
        number = DTYPES[dtype or spec.get("dtype", "float32")]
        policy = load_policy(folder / "checkpoint", device, number, trained_as=said)
        assert isinstance(policy, MimicVideoPolicy)
        return cls(run, spec, read_folder_arrays(folder, device), policy)

    def __getitem__(self, key: str) -> Tensor:
        return self.arrays[key] if key in self.arrays else self.arrays[f"stop{self.stop}.{key}"]

    @property
    def stop(self) -> int:
        """Steps of the video before the one that gives the features."""
        return self.policy.config.settings.stop_after_step

    @property
    def layers(self) -> int:
        """Of the longest way through the network."""
        config = self.policy.config
        encoder = len(config.vae) * (config.vae_blocks + 1)
        return encoder + (1 + self.stop) * config.blocks + config.decoder.depth

    @property
    def observation(self) -> Observation:
        frames = zip(self.policy.config.image_names, self["raw_frames"].cpu().numpy(), strict=True)
        state = self["state"][0, 0].cpu().numpy()
        return Observation(images=dict(frames), state=state, instruction=self.spec["prompt"], stamp_ns=0)

    @property
    def inputs(self) -> PolicyInputs:
        return self.policy.inputs(self.observation)

    def text(self) -> Tensor:
        """[n, W], of the words alone."""
        return self.policy.text_encode(self.inputs.tokens)["text"]

    def latents(self) -> Tensor:
        """[1, C, observed, h, w]"""
        return self.policy.vae_encode(self.inputs.images)["latents"][None]

    def features(self) -> Tensor:
        """[1, rows, W]"""
        latents, text = self.latents()[0], self.text()
        video: dict[str, Tensor] = {}
        for index in range(1 + self.stop):
            video = self.policy.video_denoise(latents, text, index, **video)
        return video["features"][None]

    def velocities(self) -> Tensor:
        """[steps, 1, H, A], where the reference was."""
        context = self.policy.prefill(self.features()[0])["context"]
        steps = zip(self["action.x_scaled"], self["action.timesteps"], strict=True)
        velocities = []
        for scaled, times in steps:
            t = self._wide(times[0, 1:2])
            x = self._wide(scaled) * ((1 - t) ** 2 + t**2).sqrt()
            velocities.append(self.policy.denoise(x, t, self.inputs.state[None], context))
        return torch.stack(velocities)

    def raw(self) -> Tensor:
        """Sampled [H, A]."""
        context, x = self.policy.prefill(self.features()[0])["context"], self._wide(self["noise_action"])
        times = flow_times(self.spec["sizes"]["steps"], self.policy.time_rule)
        for t in times:
            flow_time = self._wide(torch.full((1,), t, device=x.device))
            v = self.policy.denoise(x, flow_time, self.inputs.state[None], context)
            x = x + -1.0 / len(times) * v
        return x[0]

    def actions(self) -> Tensor:
        """In the robot's units [1, H, D]."""
        actions = self.policy.actions(self.raw().float(), np.zeros(self.policy.config.state_dim))
        return torch.from_numpy(actions)[None].to(self.policy.device)

    def _wide(self, x: Tensor) -> Tensor:
        return x.double() if self.policy.kv_dtype == torch.float64 else x
