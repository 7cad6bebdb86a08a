"""The four networks of a mimic-video as one, with the names under which `vla convert` stores them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vla_accel_ros.models.mimic_video.blocks import KeysValues
from vla_accel_ros.models.mimic_video.config import MimicVideoConfig
from vla_accel_ros.models.mimic_video.decoder import Decoder
from vla_accel_ros.models.mimic_video.vae import VAE
from vla_accel_ros.models.mimic_video.video import VideoNetwork, network_time, noise_levels
from vla_accel_ros.models.text.t5 import T5Encoder


class MimicVideo(nn.Module):
    """A mimic-video network of the given sizes, randomly initialised."""

    def __init__(self, config: MimicVideoConfig) -> None:
        super().__init__()
        self.config = config
        self.text_encoder, self.vae = T5Encoder(config.text), VAE(config.vae)
        self.video, self.decoder = VideoNetwork(config), Decoder(config)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.decoder.pos_embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Of its parameters."""
        return self.decoder.pos_embedding.dtype

    def denoise(self, x: Tensor, t: Tensor, state: Tensor, context: list[KeysValues]) -> Tensor:
        """Velocities of a chunk; see Decoder."""
        s = self.config.settings
        video = network_time(noise_levels(s.num_sampling_step)[s.stop_after_step])
        return self.decoder(x, t, torch.full((1,), video, device=x.device), state, context)
