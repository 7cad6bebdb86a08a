"""Every family that runs on the engine's plain stages, and pi0-FAST: from frames to actions in host memory.

    python bench/families.py [--kinds xvla ...] [--views 1 2 3] [--runs N]

Random weights of the published sizes. A frame is `Engine.observe` and `Engine.act` of an engine with captured
graphs, timed by the host; `eager` is the same without graphs. The error is that of bfloat16 graphs against
float32 in plain torch, on the same weights and noise, as a share of the largest action. A pi0-FAST writes as
many tokens as it may, because random ones end no chunk: `token` is its time of one, and it has no error.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from run import Bench, Given, Row, main
from shared.policies import JOINTS, TINY_XVLA, WORD, random_policy, word_tokenizer
from shared.timing import summary, synchronize
from vla_accel_ros.engine.engine import Engine
from vla_accel_ros.models.config import GemmaConfig, LlamaConfig, VisionConfig
from vla_accel_ros.models.encoder_sizes import T5Config, VAEConfig
from vla_accel_ros.models.fastwam.config import FASTWAM, ExpertConfig, FastWAMConfig
from vla_accel_ros.models.fastwam.model import FastWAM
from vla_accel_ros.models.fastwam.policy import FastWAMPolicy
from vla_accel_ros.models.groot.config import GROOT_N1_5, GROOT_N1_7, GrootConfig
from vla_accel_ros.models.groot.embodiment import Settings
from vla_accel_ros.models.groot.model import Groot
from vla_accel_ros.models.groot.pixels import Geometry
from vla_accel_ros.models.groot.policy import GrootPolicy
from vla_accel_ros.models.groot.units import Units
from vla_accel_ros.models.mimic_video.config import MIMIC_VIDEO, DiTConfig, MimicVideoConfig
from vla_accel_ros.models.mimic_video.model import MimicVideo
from vla_accel_ros.models.mimic_video.policy import MimicVideoPolicy
from vla_accel_ros.models.openvla.policy import PixelNorm
from vla_accel_ros.models.openvla_oft.config import OPENVLA_OFT_LIBERO, OpenVLAOFTConfig
from vla_accel_ros.models.openvla_oft.model import OpenVLAOFT
from vla_accel_ros.models.openvla_oft.policy import OpenVLAOFTPolicy, unit_range
from vla_accel_ros.models.pi_fast.config import PI0_FAST, PiFastConfig
from vla_accel_ros.models.pi_fast.model import PiFast
from vla_accel_ros.models.pi_fast.policy import PiFastPolicy
from vla_accel_ros.models.policy import Policy
from vla_accel_ros.models.processing.conventions import LEROBOT, Normalizer
from vla_accel_ros.models.processing.ranges import Range
from vla_accel_ros.models.text.tokenizer import load_qwen_tokenizer
from vla_accel_ros.models.xvla.config import XVLA
from vla_accel_ros.tools.bench.subjects import random_network
from vla_accel_ros.types import Observation

KINDS: dict[str, Any] = {
    "groot_n1_7": GROOT_N1_7,
    "groot_n1_5": GROOT_N1_5,
    "xvla": XVLA,
    "openvla_oft": OPENVLA_OFT_LIBERO,
    "pi0_fast": PI0_FAST,
    "fastwam": FASTWAM,
    "mimic_video": MIMIC_VIDEO,
}
_VISION = VisionConfig(width=32, depth=2, mlp=64, heads=2, image_size=28, patch=14)
_STACK = GemmaConfig(width=64, depth=2, mlp=128, heads=4, kv_heads=1, head_dim=16)
TINY_PI_FAST = replace(PI0_FAST, vision=_VISION, prefix=_STACK, vocab=256, horizon=8, max_action_tokens=10)
T5 = T5Config(24, 2, 2, 8, 32, 300, 8, 20, True, 2, 1e-6)
TINY: dict[str, Any] = {
    "xvla": TINY_XVLA,
    "pi0_fast": TINY_PI_FAST,
    "openvla_oft": replace(
        OPENVLA_OFT_LIBERO,
        dino=VisionConfig(24, 4, 96, 2, 56, 14),
        siglip=VisionConfig(20, 3, 74, 2, 56, 14),
        prefix=LlamaConfig(20, 3, 44, 2, 2, 10),
    ),
    "fastwam": replace(
        FASTWAM,
        text=T5,
        vae=VAEConfig(4, (1, 2, 4, 4), 1, (False, True, True), 2, (0.0,) * 48, (1.0,) * 48),
        video=ExpertConfig(36, 64, 16),
        action=ExpertConfig(16, 32, 16),
        depth=3,
        heads=2,
        head_dim=18,
        image_height=64,
        image_width=96,
    ),
    "mimic_video": replace(
        MIMIC_VIDEO,
        text=replace(T5, gated=False, biases=1),
        vae=(4, 4, 8, 8, 8),
        vae_blocks=1,
        video=DiTConfig(32, 3, 2, 16, 128, 24, 6),
        decoder=DiTConfig(48, 2, 2, 24, 192, 32, 4),
        settings=replace(MIMIC_VIDEO.settings, height=32, width=48, xattn_layer_idx=2, stop_after_step=1),
    ),
}
STEPS = {"groot_n1_7": 4, "groot_n1_5": 4, "openvla_oft": 1}
"""Of a chunk, where they are not ten."""
CAMERAS = {"fastwam": 2, "mimic_video": 5}
"""Images that a frame must have, where their number is fixed."""
GEOMETRY = {
    "groot_n1_7": Geometry(256, (256, 256), 0.95, True, True, 32, 65536),
    "groot_n1_5": Geometry(224, (224, 224)),
}
"""How GR00T's cameras become pixels, as NVIDIA's folders say."""
WORDS = {"groot_n1_7": "groot_n1_7/checkpoint/backbone", "groot_n1_5": "groot_n1_5/eagle_assets"}
RECORDINGS = Path(__file__).resolve().parents[1] / "test" / "data" / "oracles"
OBSERVATIONS, WARM_UP, EAGER = 3, 10, 10
ABOUT = {"steps": STEPS, "seeds": "weights 0, observations 0 to 2, noise 0", "image": [480, 640]}


def options(add: Callable[..., Any]) -> None:
    add("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    add("--views", nargs="+", type=int, choices=(1, 2, 3), default=(1, 2), help="numbers of cameras")
    add("--runs", type=int, default=200, help="frames of each case (default: %(default)s)")


def measure(given: Given) -> Iterator[Row]:
    """A row for each model and number of views."""
    for kind in given.kinds:
        config = TINY.get(kind) if given.small else KINDS[kind]
        if config is None:
            continue
        for views in given.views if kind not in CAMERAS else [CAMERAS[kind]]:
            if isinstance(config, OpenVLAOFTConfig):
                if views > len(KINDS[kind].image_names):
                    continue
                config = replace(config, image_names=KINDS[kind].image_names[:views])
            yield row_of(kind, config, views, given)
            gc.collect()
            torch.cuda.empty_cache()


def row_of(kind: str, config: Any, views: int, given: Given) -> Row:
    """Of a model and a number of views."""
    policy, steps = policy_of(config, given.device, given.dtype), STEPS.get(kind, 10)
    weights = sum(parameter.nbytes for parameter in policy.model.parameters())
    frames = [observed(policy, views, seed) for seed in range(OBSERVATIONS)]
    row: Row = {"kind": kind, "views": views, "weights_gb": round(weights / 1e9, 3)}
    fast = Engine(policy, fast=True, steps=steps)
    row["frame"], row["act"] = timed(fast, frames, given.runs)
    if isinstance(policy, PiFastPolicy):
        tokens = policy.most_tokens
        return row | {"token": {name: round(ms / tokens, 4) for name, ms in row["act"].items()}}
    row["eager"], _ = timed(Engine(policy, fast=False, steps=steps), frames, EAGER)
    return row | {"error": error(fast, policy, config, frames[0], given)}


@dataclass(frozen=True)
class Written(PiFastPolicy):
    """Any tokens are a chunk that stands still."""

    def actions(self, raw: torch.Tensor, state: np.ndarray) -> np.ndarray:
        return np.zeros((self.config.horizon, self.joints), np.float32)

    @property
    def end_token(self) -> int:
        return -1


def policy_of(config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A random policy."""
    identity, mask = Normalizer.identity(), np.zeros(config.action_dim, bool)
    if isinstance(config, OpenVLAOFTConfig):
        oft = random_network(lambda: OpenVLAOFT(config), device).to(dtype)
        sizes = len(mask), config.state_dim
        actions, states = (unit_range(-np.ones(size), np.ones(size), np.ones(size, bool)) for size in sizes)
        return OpenVLAOFTPolicy(oft, word_tokenizer(), actions, states, PixelNorm(), mask)
    if isinstance(config, PiFastConfig):
        fast = random_network(lambda: PiFast(config), device).set_precision(dtype)
        return Written(fast, word_tokenizer(), identity, identity, mask)
    if isinstance(config, FastWAMConfig):
        wam = random_network(lambda: FastWAM(config), device).to(dtype).fold()
        return FastWAMPolicy(wam, word_tokenizer(), identity, identity, mask)
    if isinstance(config, MimicVideoConfig):
        video = random_network(lambda: MimicVideo(config), device).to(dtype)
        clamp = np.array([[-1.0], [1.0]], np.float32).repeat(config.state_dim, 1)
        return MimicVideoPolicy(video, word_tokenizer(), identity, identity, mask, clamp=clamp)
    if not isinstance(config, GrootConfig):
        return random_policy(config, device, dtype)
    model = random_network(lambda: Groot(config), device).to(dtype)
    none = Range(np.zeros(0, np.float32), np.zeros(0, np.float32))
    nothing = Units(none, none)
    names = config.image_names
    settings = Settings("arm", 3, ("arm",), names, names, len(names), nothing, GEOMETRY[config.kind], True)
    tokenizer = load_qwen_tokenizer(RECORDINGS / WORDS[config.kind], config.vocab)
    joints = mask[:JOINTS]
    return GrootPolicy(model, tokenizer, identity, identity, joints, conventions=LEROBOT, settings=settings)


def observed(policy: Policy, views: int, seed: int) -> Observation:
    """Noise images and a state within -1..1."""
    rng = np.random.default_rng(seed)
    names = policy.config.image_names[:views]
    images = {name: rng.integers(0, 256, (480, 640, 3), dtype=np.uint8) for name in names}
    fixed = isinstance(policy, (FastWAMPolicy, OpenVLAOFTPolicy))
    size = policy.config.state_dim if fixed else policy.joints
    state = rng.uniform(-1.0, 1.0, size).astype(np.float32)
    return Observation(images, state, " ".join([WORD] * 10), stamp_ns=0)


def timed(engine: Engine, frames: Sequence[Observation], runs: int) -> tuple[dict[str, float], ...]:
    """Milliseconds of a frame, and of its actions alone."""
    times_s = list[tuple[float, float]]()
    for number in range(WARM_UP + runs):
        synchronize(engine.policy.device)
        begin_s = time.perf_counter()
        with engine.observe(frames[number % len(frames)]) as prefix:
            seen_s = time.perf_counter()
            engine.act(prefix)
        times_s.append((time.perf_counter() - begin_s, time.perf_counter() - seen_s))
    return tuple(summary(1e3 * column) for column in np.array(times_s[WARM_UP:]).T)


def error(engine: Engine, policy: Policy, config: Any, frame: Observation, given: Given) -> float:
    """Of the actions, against float32."""
    noise = np.random.default_rng(0).normal(size=(config.horizon, config.action_dim)).astype(np.float32)
    begin: dict[str, Any] = {} if isinstance(policy, OpenVLAOFTPolicy) else {"noise": noise}
    exact = policy_of(config, given.device, torch.float32)
    plain = Engine(exact, steps=engine.config.steps)
    with engine.observe(frame) as prefix, plain.observe(frame) as exact_prefix:
        ours, theirs = (e.act(p, **begin).actions for e, p in ((engine, prefix), (plain, exact_prefix)))
    return round(float(np.abs(ours - theirs).max() / np.abs(theirs).max()), 5)


BENCH = Bench(
    "families",
    measure,
    options,
    about=ABOUT,
    key=("kind", "views"),
    gpu=True,
    smoke="--small --runs 2 --views 2",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
