"""Train the demo policy: rounds of data, an optimiser, averaged weights, and an ordinary checkpoint folder.

Training is resumable: existing data shards are kept, and the training state is written after every round. All
images stay on the training device as uint8 (75 KB a sample), so a step has no host traffic. The exported
weights are an exponential moving average, which the evaluation and the next round's rollouts use.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from training import data, samples, vocabulary
from training.objective import Objective
from training.recipe import Recipe, policy_config
from vla_accel_ros.models.checkpoints.fields import OURS, RECIPE
from vla_accel_ros.models.checkpoints.streaming import empty
from vla_accel_ros.models.config import TRAINED_AS, PiConfig
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.training import USUAL
from vla_accel_ros.tools.demo_policy.evaluate import one_thread_each

LOG_EVERY = 50
PANELS = {
    "flow": "flow matching loss",
    "text": "answer cross-entropy",
    "place": "localisation loss",
    "uv_error": "localisation error [image widths]",
}
"""Panels of the loss plot."""


@dataclass
class Run:
    """The state of one training run, stored in `folder`."""

    folder: Path
    recipe: Recipe
    delta_mask: np.ndarray
    device: torch.device
    objective: Objective
    average: dict[str, Tensor]
    optimiser: torch.optim.Optimizer
    statistics: samples.Statistics | None = None
    parts: list[samples.Part] = field(default_factory=list)
    step: int = 0
    rounds_done: int = 0
    log: list[dict[str, float]] = field(default_factory=list)

    @property
    def state_file(self) -> Path:
        """File of the resumable state."""
        return self.folder / "training_state.pt"


def start(folder: Path, recipe: Recipe, delta_mask: np.ndarray, device: torch.device) -> Run:
    """Return a fresh run, or the resumed run in `folder`."""
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    model = Pi(policy_config(vocabulary.build().get_vocab_size(), len(delta_mask)))
    vocabulary.spread_bins(model)
    objective = Objective(model).to(device)
    decay = [p for p in objective.parameters() if p.ndim >= 2]
    rest = [p for p in objective.parameters() if p.ndim < 2]
    optimiser = torch.optim.AdamW(
        [{"params": decay, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=(0.9, 0.98),
    )
    average = {k: v.detach().clone() for k, v in model.state_dict().items()}
    run = Run(folder, recipe, delta_mask, device, objective, average, optimiser)
    if run.state_file.exists():
        saved = torch.load(run.state_file, map_location=device, weights_only=True)
        objective.load_state_dict(saved["objective"])
        optimiser.load_state_dict(saved["optimiser"])
        run.average = saved["average"]
        run.statistics = samples.Statistics(**saved["statistics"])
        run.step, run.rounds_done, run.log = saved["step"], saved["rounds_done"], saved["log"]
    return run


def save(run: Run) -> None:
    """Write the state and the exported policy, each atomically."""
    assert run.statistics is not None
    state = {
        "objective": run.objective.state_dict(),
        "optimiser": run.optimiser.state_dict(),
        "average": run.average,
        "statistics": asdict(run.statistics),
        "step": run.step,
        "rounds_done": run.rounds_done,
        "log": run.log,
    }
    partial = run.state_file.with_suffix(".partial")
    torch.save(state, partial)
    partial.rename(run.state_file)
    config = run.objective.model.config
    export(run.folder / "policy", run.average, config, run.statistics, run.recipe, run.delta_mask)
    (run.folder / "loss.json").write_text(json.dumps(run.log))


def export(
    folder: Path,
    weights: dict[str, Tensor],
    config: PiConfig,
    statistics: samples.Statistics,
    recipe: Recipe,
    delta_mask: np.ndarray,
) -> None:
    """Write an ordinary checkpoint folder: model.safetensors (openpi keys, the dtypes of a load in bfloat16),
    config.json, assets/demo/norm_stats.json, tokenizer.json."""
    (folder / "assets" / "demo").mkdir(parents=True, exist_ok=True)
    stored = empty(Pi, config, torch.bfloat16).state_dict()
    tensors = {
        name: weight.detach().to("cpu", stored[name].dtype, copy=True, memory_format=torch.contiguous_format)
        for name, weight in weights.items()
    }
    partial = folder / "model.safetensors.partial"
    save_file(tensors, partial)
    partial.rename(folder / "model.safetensors")
    counts = ((relative, len([*alike])) for relative, alike in groupby(delta_mask.tolist()))
    mask = tuple(count if relative else -count for relative, count in counts)
    training = replace(USUAL[config.kind], delta_action_mask=mask)
    sizes = {**config.to_json(), TRAINED_AS: training.to_json()}
    (folder / "config.json").write_text(json.dumps({OURS: sizes, RECIPE: recipe.as_dict()}, indent=1) + "\n")
    stats = {"norm_stats": {"state": statistics.state, "actions": statistics.actions}}
    (folder / "assets" / "demo" / "norm_stats.json").write_text(json.dumps(stats, indent=1) + "\n")
    vocabulary.save(folder)


def learning_rate(step: int, total: int, recipe: Recipe) -> float:
    """Return the rate: linear warm-up, then a cosine to 2 % of the peak."""
    if step < recipe.warmup:
        return recipe.learning_rate * (step + 1) / recipe.warmup
    progress = (step - recipe.warmup) / max(1, total - recipe.warmup)
    return recipe.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(folder: Path, recipe: Recipe, delta_mask: np.ndarray, device: torch.device, processes: int) -> Path:
    """Run all unfinished rounds and return the exported policy's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    run = start(folder, recipe, delta_mask, device)
    size = run.objective.model.config.vision.image_size

    def submit(number: int) -> list[Future[Path]]:
        return data.submit(pool, folder, recipe, number, delta_mask, size) if number < recipe.rounds else []

    with ProcessPoolExecutor(processes, get_context("spawn"), one_thread_each) as pool:
        for earlier in range(run.rounds_done):
            _add_part(run, earlier)
        pending = submit(run.rounds_done)
        for number in range(run.rounds_done, recipe.rounds):
            data.collect(pending, f"round {number}: data")
            pending = submit(number + 1)
            _add_part(run, number)
            _train_round(run, pending)
            run.rounds_done = number + 1
            save(run)
    return folder / "policy"


def _add_part(run: Run, number: int) -> None:
    arrays = data.load(run.folder, number)
    run.statistics = run.statistics or samples.Statistics.of(arrays, run.delta_mask)
    run.parts.append(samples.Part.of(arrays, run.statistics, run.delta_mask, run.device))


def _train_round(run: Run, pending: list[Future[Path]]) -> None:
    recipe, total = run.recipe, run.recipe.steps * run.recipe.rounds
    generator = torch.Generator(run.device).manual_seed(recipe.seed * 1000 + run.rounds_done)
    fast = run.device.type == "cuda"
    objective = torch.compile(run.objective) if fast else run.objective
    label = f"round {run.rounds_done}: {sum(map(len, run.parts))} samples"
    progress = tqdm(range(recipe.steps), desc=label, mininterval=5)
    for _ in progress:
        batch = samples.batch(run.parts, recipe.batch, generator)
        for group in run.optimiser.param_groups:
            group["lr"] = learning_rate(run.step, total, recipe)
        with torch.autocast(run.device.type, torch.bfloat16, enabled=fast):
            loss, terms = objective(batch)
        run.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(run.objective.parameters(), 1.0)
        run.optimiser.step()
        _average(run)
        run.step += 1
        if run.step % LOG_EVERY == 0:
            values = {name: value.item() for name, value in terms.items()}
            run.log.append({"step": run.step, "round": run.rounds_done, **values})
            shards = sum(not future.done() for future in pending)
            progress.set_postfix(
                {name: f"{value:.3f}" for name, value in values.items()} | {"shards": shards}
            )


def _average(run: Run) -> None:
    keep = min(run.recipe.ema, (run.step + 1) / (run.step + 10))
    current = run.objective.model.state_dict()
    torch._foreach_lerp_(list(run.average.values()), [current[name] for name in run.average], 1 - keep)


def plot_loss(log: Path, picture: Path) -> None:
    """Plot the run's `loss.json` as a PNG: one panel for each term, one colour for each round, log scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    entries = json.loads(log.read_text())
    figure, axes = plt.subplots(1, len(PANELS), figsize=(4 * len(PANELS), 3.2), constrained_layout=True)
    rounds = sorted({entry["round"] for entry in entries})
    for axis, (name, title) in zip(axes, PANELS.items()):
        for number in rounds:
            points = [(entry["step"], entry[name]) for entry in entries if entry["round"] == number]
            step, value = np.array(points).T
            axis.semilogy(step, value, linewidth=1, label=f"round {number:.0f}")
        axis.set(title=title, xlabel="step")
        axis.grid(True, which="both", alpha=0.25)
    if rounds:
        axes[0].legend()
    figure.savefig(picture, dpi=110)
    plt.close(figure)
