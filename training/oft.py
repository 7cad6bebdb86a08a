"""Train a small OpenVLA-OFT for the simulated arm, on the demo's data: a few minutes on a GPU.

The family is the cheapest to train of those here: one forward, and the mean absolute error of a chunk, which
is the authors' loss. There is one round of the disturbed expert's data and no DAgger. As in the demo's
objective a localisation loss (not shipped) teaches the stack to attend to the images. Prompts are not padded
in this family, so samples are grouped by the length of their prompts; each group has its share of a batch.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Words
from torch import Tensor, nn

from training import data
from training.objective import LOCALISATION_LAYERS, Localiser
from training.recipe import Recipe
from training.samples import Arrays, jitter, relative
from training.train import LOG_EVERY, learning_rate
from vla_accel_ros.models.checkpoints.fields import OURS, RECIPE
from vla_accel_ros.models.config import LlamaConfig, VisionConfig
from vla_accel_ros.models.openvla.policy import PixelNorm, openvla_prompt, prompt_ids
from vla_accel_ros.models.openvla_oft.checkpoint import HEAD, PARALLEL, PROPRIO
from vla_accel_ros.models.openvla_oft.config import RANGE, OpenVLAOFTConfig
from vla_accel_ros.models.openvla_oft.model import OpenVLAOFT
from vla_accel_ros.models.openvla_oft.pictures import prepared
from vla_accel_ros.models.openvla_oft.policy import unit_range
from vla_accel_ros.models.processing.ranges import Range
from vla_accel_ros.models.text.tokenizer import load_tokenizer
from vla_accel_ros.sim.tasks import tasks
from vla_accel_ros.tools.demo_policy.evaluate import one_thread_each
from vla_accel_ros.tools.demo_policy.recipe import CAMERAS

MINUTES = Recipe(
    expert_rounds=1, dagger_rounds=0, expert_episodes=9_000, steps=3_000, batch=512, learning_rate=1e-3,
    warmup=200, ema=0.0,
)  # fmt: skip
SECONDS = Recipe(expert_rounds=1, dagger_rounds=0, expert_episodes=2, steps=3, batch=4, warmup=2, ema=0.0)
"""Only shows that everything works."""
BATCH = ("images", "words", "state", "actions", "uv", "uv_mask")
"""What a batch of B samples has: uint8 [B, 2, 3, S, S]; int64 [B, t]; normalised float32 [B, 6] and
[B, H, 6]; float32 [B, 2, 2] and bool [B, 2] as in objective.Batch."""
Samples = dict[str, Tensor]


def policy_config(vocab: int, dims: int) -> OpenVLAOFTConfig:
    """Return a small OpenVLA-OFT: two cameras of 112 x 112, a chunk of 16 actions at 30 Hz."""
    tower = VisionConfig(width=128, depth=4, mlp=512, heads=4, image_size=112, patch=14)
    return OpenVLAOFTConfig(
        dino=tower,
        siglip=tower,
        registers=1,
        prefix=LlamaConfig(width=192, depth=6, mlp=640, heads=4, kv_heads=4, head_dim=48),
        vocab=vocab,
        action_vocab=vocab,
        bins=2,
        space_token=None,
        max_prompt=32,
        image_names=tuple(CAMERAS),
        horizon=16,
        action_dim=dims,
        state_dim=dims,
        bounds=RANGE,
    )


def write_words(folder: Path) -> int:
    """Write `tokenizer.json`, one token for each word of the tasks' prompts, and return their number."""
    split = pre_tokenizers.Split(Regex(r"\w+|\n|[^\s\w]"), behavior="removed", invert=True)
    prompts = [openvla_prompt(task.instruction) for task in tasks()]
    words = sorted({word for prompt in prompts for word, _ in split.pre_tokenize_str(prompt)})
    pieces = ["<unk>", "<s>", "</s>", *words]
    tokenizer = Words(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.add_special_tokens(pieces[:3])
    tokenizer.pre_tokenizer = split
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(pieces)


class Objective(nn.Module):
    """The losses of a batch; `forward` returns their weighted sum, and the terms for the log."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: OpenVLAOFT, localisation_weight: float = 0.05) -> None:
        super().__init__()
        self.model, self.localisation_weight = model, localisation_weight
        self.cells = model.config.dino.image_size // model.config.dino.patch
        prefix, norm = model.config.prefix, PixelNorm()
        self.localiser = Localiser(2 * LOCALISATION_LAYERS * prefix.kv_heads * prefix.head_dim)
        self.register_buffer("mean", torch.tensor(norm.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(norm.std)[:, None, None])

    def forward(
        self, images: Tensor, words: Tensor, state: Tensor, actions: Tensor, uv: Tensor, uv_mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """images: float in [-1, 1]; else see BATCH."""
        hidden, front = self.hidden(images, words, state)
        error = F.l1_loss(self.predicted(hidden).float(), actions)
        location_error, uv_error = self.localiser(front, self.cells, uv, uv_mask)
        loss = error + self.localisation_weight * location_error
        return loss, {"l1": error.detach(), "place": location_error.detach(), "uv_error": uv_error}

    def hidden(self, images: Tensor, words: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden states [B, T, W] of a batch, as OpenVLAOFT.hidden gives one sample's; and what actions
        see of the front image, the last layers' keys and values [B, cells^2, features]."""
        pixels = ((images.repeat(1, 1, 2, 1, 1) + 1) / 2 - self.mean) / self.std
        seen = self.model.encode(pixels.flatten(0, 1)).unflatten(0, pixels.shape[:2]).flatten(1, 2)
        x = torch.vmap(self.model.embed)(seen, words, state).flatten(0, 1)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        llama = self.model.language_model.model
        hidden, keys, values = llama.run(x, positions, lambda layer: F.scaled_dot_product_attention)
        last = (*keys[-LOCALISATION_LAYERS:], *values[-LOCALISATION_LAYERS:])
        front = [heads[:, :, 1 : 1 + self.cells**2].transpose(1, 2).flatten(2) for heads in last]
        return hidden, torch.cat(front, -1)

    def predicted(self, hidden: Tensor) -> Tensor:
        """[B, T, W] -> actions [B, H, A], normalised, as OpenVLAOFT.chunk gives one sample's."""
        config = self.model.config
        rows = config.horizon * config.action_dim
        read = hidden[:, -rows - 2 : -2].unflatten(1, (config.horizon, -1)).flatten(2)
        return self.model.action_head.model(read)


def initialise(model: OpenVLAOFT) -> None:
    """Draw the weights with unit gain, without biases: with torch's own, joints and images hardly reach the
    rows of the actions, which come in as zeros."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    nn.init.normal_(model.language_model.model.embed_tokens.weight, std=0.5)


def prepare(image: np.ndarray, size: int) -> np.ndarray:
    """uint8 [H, W, 3] -> uint8 [size, size, 3], as the policy prepares it."""
    return prepared([torch.from_numpy(image)], size)[0].permute(1, 2, 0).byte().numpy()


def bounds_of(values: np.ndarray) -> Range:
    """Least and greatest of values [..., D], a little apart where a number never changes."""
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    return unit_range(flat.min(0) - 1e-3, flat.max(0) + 1e-3, np.ones(flat.shape[1], np.bool_))


def encoded(
    arrays: Arrays, folder: Path, config: OpenVLAOFTConfig, delta_mask: np.ndarray, device: torch.device
) -> tuple[list[Samples], dict[str, Range]]:
    """Return the samples on the device, one group for each length of prompt, and the bounds of what was
    normalised, by the names in `dataset_statistics.json`."""
    chunks = relative(arrays, delta_mask)[:, : config.horizon]
    bounds = {"action": bounds_of(chunks), "proprio": bounds_of(arrays["state"])}
    tokenizer = load_tokenizer(folder, config.vocab)
    instructions, which = np.unique(arrays["instruction"], return_inverse=True)
    prompts = [prompt_ids(str(instruction), tokenizer, config) for instruction in instructions]
    lengths = np.array([len(prompt) for prompt in prompts])[which]
    groups = []
    for length in np.unique(lengths):
        index = np.flatnonzero(lengths == length)
        columns = (
            np.stack([arrays[camera][index] for camera in CAMERAS.values()], 1),
            np.array([prompts[i] for i in which[index]]),
            bounds["proprio"].normalize(arrays["state"][index]).astype(np.float32),
            bounds["action"].normalize(chunks[index]).astype(np.float32),
            arrays["uv"][index],
            arrays["uv_mask"][index],
        )
        groups.append({name: torch.from_numpy(c).to(device) for name, c in zip(BATCH, columns, strict=True)})
    return groups, bounds


def fit(objective: nn.Module, groups: list[Samples], recipe: Recipe) -> list[dict[str, float]]:
    """Train by the recipe; returns the log. The rate ends near zero, so the last weights are the policy's."""
    device = groups[0]["state"].device
    generator = torch.Generator(device).manual_seed(recipe.seed)
    cuda, total = device.type == "cuda", sum(len(group["state"]) for group in groups)
    loss_of = torch.compile(objective, dynamic=False) if cuda else objective
    optimiser = torch.optim.AdamW(
        objective.parameters(), weight_decay=recipe.weight_decay, betas=(0.9, 0.98), fused=cuda
    )
    log = []
    for step in range(recipe.steps):
        optimiser.param_groups[0]["lr"] = learning_rate(step, recipe.steps, recipe)
        optimiser.zero_grad(set_to_none=True)
        for group in groups:
            count, share = len(group["state"]), len(group["state"]) / total
            size = (max(1, round(recipe.batch * share)),)
            index = torch.randint(count, size, device=device, generator=generator)
            batch = {name: column[index] for name, column in group.items()}
            batch["images"] = jitter(batch["images"], generator)
            with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
                loss, terms = loss_of(**batch)
            (share * loss).backward()
        nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
        optimiser.step()
        if (step + 1) % LOG_EVERY == 0 or step + 1 == recipe.steps:
            log.append({"step": step + 1, **{name: round(value.item(), 5) for name, value in terms.items()}})
            print(log[-1], flush=True)
    return log


def export(folder: Path, model: OpenVLAOFT, bounds: dict[str, Range], recipe: Recipe) -> None:
    """Write a folder in the family's published layout, in bfloat16, beside the `tokenizer.json` that is
    there: weights, head, projector of the state, sizes, statistics."""
    weights = {
        name: weight.detach().to("cpu", torch.bfloat16, copy=True).contiguous()
        for name, weight in model.state_dict().items()
    }
    for part in (HEAD, PROPRIO):
        names = [name for name in weights if name.startswith(part)]
        tensors = {name.replace(f"{part}.", PARALLEL, 1): weights.pop(name) for name in names}
        torch.save(tensors, folder / f"{part}--latest_checkpoint.pt")
    save_file(weights, folder / "model.safetensors")
    config = {"model_type": "openvla", OURS: model.config.to_json(), RECIPE: recipe.as_dict()}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    statistics = {
        name: {"min": b.low.tolist(), "max": b.high.tolist(), "mask": b.mask.tolist()}
        for name, b in bounds.items()
    }
    (folder / "dataset_statistics.json").write_text(json.dumps({"demo": statistics}, indent=1) + "\n")


def train(
    folder: Path,
    recipe: Recipe,
    families: tuple[str, ...],
    delta_mask: np.ndarray,
    device: torch.device,
    processes: int,
) -> dict[str, Any]:
    """Record the data, train, write the checkpoint into folder/policy; returns what is to be published."""
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    begin_s, policy = perf_counter(), folder / "policy"
    config = policy_config(write_words(policy), len(delta_mask))
    with ProcessPoolExecutor(processes, get_context("spawn"), one_thread_each) as pool:
        size = config.dino.image_size
        data.collect(data.submit(pool, folder, recipe, 0, delta_mask, size, families, prepare), "data")
    groups, bounds = encoded(data.load(folder, 0), policy, config, delta_mask, device)
    data_s = perf_counter() - begin_s
    model = OpenVLAOFT(config)
    initialise(model)
    log = fit(Objective(model).to(device), groups, recipe)
    export(policy, model, bounds, recipe)
    return {
        "families": families,
        "recipe": recipe.as_dict(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "samples": sum(len(group["state"]) for group in groups),
        "data_s": round(data_s, 1),
        "total_s": round(perf_counter() - begin_s, 1),
        "log": log,
    }
