"""What is measured: one random full-size model, and the ways to run it.

All ways share weights and inputs, drawn in float32 on the device. One float32 run there is the reference for
errors; then weights are rounded to bfloat16 as openpi does. Random weights take as long as trained ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.processing.conventions import to_unit
from vla_accel_ros.models.smolvla.config import SmolVLAConfig
from vla_accel_ros.models.smolvla.model import SmolVLA

STEPS = 10
Network = TypeVar("Network", bound=torch.nn.Module)


class Inputs(NamedTuple):
    """One observation and the noise: frames uint8 [V, S, S, 3] on the host, images [V, 3, S, S] made from
    them, prompt int64 [t], noise [1, H, A], state [1, S]."""

    frames: np.ndarray
    images: Tensor
    prompt: Tensor
    noise: Tensor
    state: Tensor


def random_model(
    config: PiConfig, device: torch.device, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Pi:
    """Return a random pi0 or pi0.5. dtype: see set_precision."""
    return random_network(lambda: Pi(config).set_precision(dtype), device, seed)


def random_smolvla(config: SmolVLAConfig, device: torch.device, seed: int = 0) -> SmolVLA:
    """Return a random SmolVLA."""
    return random_network(lambda: SmolVLA(config), device, seed)


def random_network(make: Callable[[], Network], device: torch.device, seed: int = 0) -> Network:
    """Return a network in evaluation mode with every parameter drawn, so that none is zero."""
    with torch.device("meta"):
        model = make()
    model = model.to_empty(device=device).requires_grad_(False).eval()
    if isinstance(model, Pi):
        model.tie_weights()
    generator = torch.Generator(device).manual_seed(seed)
    for parameter in model.parameters():
        spread = 0.1 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
        parameter.normal_(0.0, spread, generator=generator)
    return model


def random_inputs(
    config: PiConfig | SmolVLAConfig, views: int, prompt: int, device: torch.device, seed: int = 1
) -> Inputs:
    """Return random inputs."""
    g = torch.Generator(device).manual_seed(seed)
    size = config.vision.image_size
    frames = torch.randint(256, (views, size, size, 3), generator=g, device=device).byte().cpu()
    return Inputs(
        frames.numpy(),
        to_unit(frames).to(device),
        torch.randint(4, config.vocab, (prompt,), generator=g, device=device),
        torch.randn(1, config.horizon, config.action_dim, generator=g, device=device),
        torch.randn(1, config.state_dim, generator=g, device=device),
    )


class Ours:
    """The stages for one number of views, ready to be replayed one by one or all together.

    precision: see engine.stages.stages.
    """

    def __init__(
        self,
        model: Pi | SmolVLA,
        inputs: Inputs,
        steps: int = STEPS,
        precision: str = "exact",
    ) -> None:
        config, self.inputs, self.steps = model.config, inputs, steps
        pool = KVPool(
            config.prefix, 2, config.max_tokens, model.embed_table.device, model.language_model.dtype
        )
        self.stages = Stages(model, pool, precision=precision)
        states = [inputs.state[0].cpu()]
        self.lengths = self.stages.observe([inputs.frames], [inputs.prompt], [1], states=states)
        self.actions = self._act()

    def _act(self) -> Tensor:
        state = self.inputs.state
        return self.stages.act(self.inputs.noise, state, [1], self.lengths, self.steps).actions

    def parts(self) -> dict[str, Callable[[], object]]:
        """Return each stage as a replay, and the whole from images to actions."""
        encode = self.stages.encode(self.inputs.images.shape[0])
        prefill = self.stages.prefill(self.inputs.images.shape[0], len(self.inputs.prompt))
        denoise = self.stages.denoise(1, self.steps)

        def total() -> None:
            for stage in (encode, prefill, denoise):
                stage.run()

        return {"encode": encode.run, "prefill": prefill.run, "denoise": denoise.run, "total": total}
