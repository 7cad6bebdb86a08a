"""Memory of models while they are loaded and their stages built: counted on a CPU, beside the plan.

    python bench/memory.py [--cases pi05:fp8:drop ...] [--small --out DIR]

A case is MODEL:PRECISION:keep or drop, as in `keep_exact`. A model of the published sizes, with zero weights,
goes through the loader one tensor at a time in bfloat16, and the stages for a frame and a chunk are made.
Every live tensor storage is counted (shared/peak.py): the peak, the final amount, and the
difference in layers of the largest stack. A GPU's libraries use no memory here, so the plan adds theirs:
those numbers are computed, not measured. Rows of other cases stay in the file. It needs about 8 GB of host
memory, and ten minutes on two cores. --small takes tiny models.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from run import Bench, Given, Row, main
from shared.peak import LiveBytes
from vla_accel_ros.engine.kv.pool import KVPool
from vla_accel_ros.engine.stages.dropping import dropping
from vla_accel_ros.engine.stages.packed_forward import PackedForward
from vla_accel_ros.engine.stages.precision import PRECISIONS
from vla_accel_ros.engine.stages.stages import Stages
from vla_accel_ros.models.checkpoints.streaming import empty, fill
from vla_accel_ros.models.config import PiConfig
from vla_accel_ros.models.layers import quantized
from vla_accel_ros.models.layers.fused import fused_parts
from vla_accel_ros.models.layers.quantized import INT4, INT8
from vla_accel_ros.models.openvla.config import OpenVLAConfig
from vla_accel_ros.models.openvla.model import OpenVLA
from vla_accel_ros.models.pi.model import Pi
from vla_accel_ros.models.pi.weights import finished
from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.memory import memory
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.work import Work
from vla_accel_ros.tools.bench.tiny import tiny_models

CPU, BF16 = torch.device("cpu"), torch.bfloat16
CASES = ("pi05:exact:keep", "pi05:fp8:drop", "pi05:int8:drop", "pi0:int8:drop", "openvla:int4:drop")
SLOTS, VIEWS, PROMPT, STEPS = 3, 2, 20, 10
DEVICE = "rtx-4090"
"""The device whose context and workspaces the plan adds; it also computes encode and denoise in fp8."""


def options(add: Callable[..., Any]) -> None:
    add("--cases", nargs="+", default=list(CASES), help="(default: those of the table)")


def measure(given: Given) -> Iterator[Row]:
    """A row for each case. Raises ValueError for a case that cannot be."""
    models = tiny_models() if given.small else MODELS
    for case in given.cases:
        kind, precision, exact = [*case.split(":"), "", ""][:3]
        if kind not in ("pi0", "pi05", "openvla") or precision not in PRECISIONS:
            raise ValueError(f"--cases has {case!r}; give MODEL:PRECISION:keep or drop, such as {CASES[1]}.")
        with patch.object(quantized, "SHRINKS", (1.0,)):  # zeros need no search for a scale
            yield counted(models[kind], precision, exact != "drop")


def counted(sizes: Any, precision: str, keep_exact: bool) -> dict[str, Any]:
    """One case."""
    pi, g = isinstance(sizes, PiConfig), sizes.prefix
    views = VIEWS if pi else 1
    prompt = min(PROMPT, sizes.max_prompt)
    model: Any = empty(Pi if pi else OpenVLA, sizes, BF16)
    parameters = dict(model.named_parameters())
    on_layer = None if keep_exact else dropping(precision, CPU)
    gc.collect()  # the case before
    with LiveBytes() as live:
        zeros = ((name, torch.zeros((), dtype=BF16).expand(p.shape)) for name, p in parameters.items())
        fill(model, zeros, CPU, 1, "zeros", None, fused_parts(model), on_layer)
        if pi:
            finished(model)
        gc.collect()
        loaded, load_peak = live.held.present, live.held.peak
        live.reset_peak()
        pool = KVPool(g, SLOTS, sizes.max_tokens, CPU, BF16)
        stages: Any
        if pi:
            stages = Stages(model, pool, precision=precision)
            stages.encode(views), stages.prefill(views, prompt), stages.denoise(1, STEPS)
        else:
            weights = precision if precision in (INT8, INT4) else None
            stages = PackedForward(model.stack, g, sizes.max_tokens, weights=weights)
        gc.collect()
        final, peak = live.held.present, max(live.held.peak, load_peak)
    device = replace(load(DEVICE), fast_memory=False)
    work = Work(views, prompt, STEPS, precision=precision)
    plan = memory(sizes, work, device, SLOTS, keep_exact=keep_exact)
    tensors = plan.allocated - plan.workspace - plan.building
    if isinstance(sizes, OpenVLAConfig):
        tensors -= plan.buffers + plan.frames  # forwards are made when their shape first occurs
    layer = 2 * g.width * ((2 * g.heads + 2 * g.kv_heads) * g.head_dim + 3 * g.mlp)
    return {
        "model": sizes.kind,
        "precision": precision,
        "keep_exact": keep_exact,
        "loaded_bytes": loaded,
        "final_bytes": final,
        "peak_bytes": peak,
        "beyond_in_layers": round((peak - final) / layer, 3),
        "planned_bytes": tensors,
        "off_percent": round(100 * (tensors / final - 1), 2),
        "total_computed_bytes": plan.total,
    }


BENCH = Bench(
    "memory",
    measure,
    options,
    about={"slots": SLOTS, "device": DEVICE},
    rows="rows",
    key=("model", "precision", "keep_exact"),
    small=True,
    smoke="--small",
)

if __name__ == "__main__":
    sys.exit(main(BENCH))
