"""`vla bench device`: what this GPU computes, how fast, and how close a plan comes, in one file to share.

It compares kernels with their references, and times the engine's stages at the published sizes with random
weights. Beside both it puts the plan from micro-benchmarks of this machine and the plan from the nearest
device file. What does not fit, is not multiplied here, or would start too late is left out with its reason.
The file has nothing of the user's: no path, no host name, no checkpoint.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vla_accel_ros.models.pi_fast.config import PiFastConfig
from vla_accel_ros.planning.device import Device, load, named_like
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.work import PlainSizes
from vla_accel_ros.tools.options import write_text
from vla_accel_ros.tools.provenance import provenance

NEAREST = "rtx-4090"
"""Device file with the default numbers for a GPU without a file of its own."""
FAST_FIRST = ("exact", "fp8", "nvfp4", "int8", "w8a8", "w8a8-int4", "int4")
SLOW_FIRST = ("exact", "w8a8-int4", "w8a8", "fp8", "nvfp4", "int8", "int4")
"""Precisions by usefulness, on GPUs with stacked memory and on others; the last ones are left out if time
runs short."""
KINDS = tuple(name for name, sizes in MODELS.items() if not isinstance(sizes, (PlainSizes, PiFastConfig)))
"""Families with stages of kernels."""
NO_GPU = "torch sees no CUDA device here; --small tries the command with tiny models on a CPU."


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's options."""
    add = parser.add_argument
    add("--small", action="store_true", help="tiny models on the CPU, whose times mean nothing")
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="(default: all)")
    add("--views", nargs="+", type=int, default=[1, 2, 3], help="cameras (default: 1 2 3)")
    add("--runs", type=int, default=50, help="replays of each stage (default: %(default)s)")
    add("--seconds", type=float, default=280.0, help="begin no model after this time (default: %(default)g)")
    add("--device", help="shipped device that is compared, too (default: the one like this GPU)")
    add("--out", type=Path, help="folder of device_NAME.json (default: here)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write. Returns 0 if every kernel is close to its reference. Raises RuntimeError without
    a GPU, unless `small`; ValueError if the views or the device are invalid."""
    import torch

    small = arguments.small
    if not small and not torch.cuda.is_available():
        raise RuntimeError(NO_GPU)
    if min(arguments.views) < 1 or max(arguments.views) > 3:
        raise ValueError(f"--views is {arguments.views}; give numbers from 1 to 3.")
    gpu = "" if small else torch.cuda.get_device_name()
    base = load(arguments.device or named_like(gpu) or NEAREST)
    document = measured(arguments, base, print)
    print("\n".join(lines(document)))
    name = "small" if small else "_".join(re.findall(r"[a-z0-9]+", gpu.lower()))
    file = (arguments.out or Path()) / f"device_{name}.json"
    write_text(file, json.dumps(document, indent=1) + "\n")
    print(f"written: {file}")
    return 0 if document["kernels_good"] else 1


def measured(arguments: argparse.Namespace, base: Device, say: Callable[[str], object]) -> dict[str, Any]:
    """Return the document."""
    import torch

    from vla_accel_ros.models.config import PiConfig
    from vla_accel_ros.planning.measure import to_yaml
    from vla_accel_ros.tools.bench.kernels import KERNELS, checked, few_layers
    from vla_accel_ros.tools.bench.stages import against_plans
    from vla_accel_ros.tools.bench.tiny import tiny_models

    start_s, small = time.monotonic(), arguments.small
    device = torch.device("cpu" if small else "cuda")
    models = {kind: (tiny_models() if small else MODELS)[kind] for kind in arguments.kinds}
    configs = [few_layers(sizes) for sizes in models.values() if isinstance(sizes, PiConfig)]
    say("kernels against their references")
    dtype = torch.float32 if small else torch.bfloat16
    kernels = sorted(checked(configs, device, dtype), key=lambda kernel: kernel.kernel)
    took_s = time.monotonic() - start_s
    say(f"stages against the plan, after {took_s:.0f} s")
    precisions = ["exact"] if small else [*(FAST_FIRST if base.fast_memory else SLOW_FIRST)]
    remaining_s = max(arguments.seconds - took_s, 1.0)
    measured_device, stages = against_plans(
        models,
        base,
        device,
        arguments.views,
        precisions,
        4 if small else 20,
        arguments.runs,
        remaining_s,
        say,
    )
    launched = {kernel.kernel for kernel in kernels}
    return {
        **provenance(),
        "device": described(device),
        "base": base.name,
        "kernels": [{**asdict(kernel), "good": kernel.good} for kernel in kernels],
        "kernels_good": all(kernel.good for kernel in kernels),
        "not_launched": [name for name in KERNELS if name not in launched] if configs else list(KERNELS),
        **stages,
        "device_file": None
        if small
        else to_yaml(measured_device, torch.cuda.get_device_name(), "vla bench device"),
        "took_s": round(time.monotonic() - start_s, 1),
    }


def described(device: Any) -> dict[str, Any]:
    """Describe a device as torch sees it; clusters: how many of so many blocks run at once, on sm_90."""
    import torch

    from vla_accel_ros.kernels.cuda.compiling import launchable
    from vla_accel_ros.kernels.cuda.products import clusters_at_once

    if device.type != "cuda":
        return {"name": "cpu"}
    clusters = clusters_at_once(device) if launchable(torch.empty(0, device=device)) else {}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "integrated": bool(properties.is_integrated),
        "cuda": torch.version.cuda,
        "clusters": {str(blocks): number for blocks, number in clusters.items()},
    }


def lines(document: dict[str, Any]) -> Iterable[str]:
    """Yield the document's lines for a terminal."""
    from vla_accel_ros.tools.bench.planned import table

    yield f"{'kernel':20}{'launches':>9}{'error':>10}{'at most':>9}  at its worst"
    for kernel in document["kernels"]:
        fault = kernel["wrong"] or ("" if kernel["good"] else "WRONG")
        yield (
            f"{kernel['kernel']:20}{kernel['launches']:9d}{kernel['error']:10.1e}{kernel['most']:9.1e}  "
            f"{kernel['where']}  {fault}".rstrip()
        )
    if document["not_launched"]:
        yield f"not launched by these models: {', '.join(document['not_launched'])}"
    if clusters := document["device"].get("clusters"):
        at_once = ", ".join(f"{number} of {blocks}" for blocks, number in clusters.items())
        yield f"clusters at once: {at_once} blocks"
    yield table(document["rows"])
    for row in document["memory"]:
        measured, planned = row["measured_bytes"] / 1e9, row["predicted_bytes"] / 1e9
        case = f"{row['model']} {row['views']} views {row['precision']}"
        yield f"memory {case}: {measured:.2f} GB, plan {planned:.2f} ({row['off_percent']:+.1f} %)"
    for kind, reason in document["left_out"].items():
        yield f"left out: {kind}, as {reason}"
    good = sum(kernel["good"] for kernel in document["kernels"])
    yield (
        f"{good} of {len(document['kernels'])} kernels are near their references; {document['met']} of "
        f"{document['of']} times within 10 % of a plan; {document['took_s']:.0f} s"
    )
