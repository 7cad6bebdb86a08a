"""The parameters of the model that a node runs an engine of."""

from __future__ import annotations

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.nodes.params.parameter import Parameter, parameters

MODEL = (
    Parameter(
        "model",
        "",
        "Checkpoint folder of openpi (PyTorch or JAX), lerobot, OpenVLA or ours; `vla inspect` shows "
        "which. Must be given.",
    ),
    Parameter(
        "statistics",
        "",
        "The robot's statistics, if the checkpoint has several: openpi's asset id, OpenVLA's data set; for "
        "a checkpoint that lerobot saved, the folder of a data set whose meta/stats.json replaces its own.",
    ),
    Parameter(
        "trained_as",
        "",
        "Settings of an openpi training that none of its checkpoint's files holds: the public configuration "
        "(pi05_libero), or as `vla inspect` asks for them (action_horizon=10 ...). Of lerobot's pi0 and "
        "pi0.5: prompt_state=padded or own, if `vla inspect` asks for it. Empty for any other.",
    ),
    Parameter(
        "prompt_state",
        "auto",
        "The state in pi0.5's prompt: its own dimensions, padded to all of the network's (lerobot up to "
        "0.4.4), or none; auto follows the checkpoint.",
        choices=("auto", "own", "padded", "none"),
    ),
    Parameter(
        "device",
        "auto",
        "Where the model runs; auto takes CUDA if there is one.",
        choices=("auto", "cpu", "cuda"),
    ),
    Parameter(
        "dtype",
        "auto",
        "Number format of the weights and the KV cache; auto is bfloat16 on CUDA and float32 elsewhere.",
        choices=("auto", "float32", "bfloat16"),
    ),
    Parameter(
        "torch_threads",
        1,
        "CPU threads of one torch operator; 0 leaves torch's own choice.",
        minimum=0,
        maximum=256,
    ),
)
"""What is loaded, and where."""


OPTIONS = tuple(parameter.name for parameter in parameters(EngineConfig))
