"""What benches run beside the engine's stages: the plain network, a language model alone, observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from shared.policies import WORD
from vla_accel_ros.models.config import VisionConfig
from vla_accel_ros.models.flow.sampling import flow_times
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.tools.bench.subjects import STEPS, Inputs
from vla_accel_ros.types import Observation


def random_llama(config: OpenVLAConfig, device: torch.device, dtype: torch.dtype) -> OpenVLA:
    """Return an OpenVLA with a random language model and minimal towers."""
    none = VisionConfig(16, 2, 16, 2, config.dino.image_size, config.dino.patch)
    with torch.device("meta"):
        model = OpenVLA(replace(config, dino=none, siglip=none))
    model = model.to(dtype).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, parameter[0].numel() ** -0.5, generator=generator)
    return model.eval()


def plain(model: Pi, inputs: Inputs, steps: int = STEPS) -> Callable[[], Tensor]:
    """Return a function from images to actions [1, H, A] by the reference modules. It can be captured,
    because its times are on the device beforehand."""
    device = inputs.noise.device
    times = [torch.full((1,), t, device=device) for t in flow_times(steps)]

    def run() -> Tensor:
        images = model.encode(inputs.images).flatten(0, 1)
        _, kv = model.prefix(torch.cat((images, model.embed_tokens(inputs.prompt)))[None])
        x = inputs.noise
        for t in times:
            x = x - model.velocity(x, t, inputs.state, kv) / steps
        return x

    return run


def relative(ours: Tensor, exact: Tensor) -> float:
    """Return the norm of the difference over the norm of the exact tensor."""
    return float((ours.double() - exact.double()).norm() / exact.double().norm())


def random_observation(
    policy: Policy, views: int, prompt: int, size: tuple[int, int] | None = None, seed: int = 0
) -> Observation:
    """Return noise images [V, height, width, 3], a state within -1..1, and an instruction that makes `prompt`
    tokens.

    size: height and width, None = the network's own. Raises ValueError if the prompt is too short or too
    long.
    """
    rng = np.random.default_rng(seed)
    state = rng.uniform(-1.0, 1.0, policy.joints).astype(np.float32)
    words = 1 + prompt - len(policy.prompt(WORD, state))
    instruction = " ".join([WORD] * words)
    shortest, longest = prompt - words + 1, policy.config.max_prompt
    if not shortest <= prompt <= longest:
        raise ValueError(f"prompt is {prompt} tokens; give {shortest} to {longest}.")
    shape = (*(size or (policy.image_size,) * 2), 3)
    names = policy.config.image_names[:views]
    images = {name: rng.integers(0, 256, shape, dtype=np.uint8) for name in names}
    return Observation(images, state, instruction, stamp_ns=0)
