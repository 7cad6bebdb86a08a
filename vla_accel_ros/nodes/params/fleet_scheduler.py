"""Parameters of the node fleet_scheduler: those of the model, as in the node inference, and of the
scheduling."""

from __future__ import annotations

from vla_accel_ros.nodes.params.inference import INFERENCE
from vla_accel_ros.nodes.params.parameter import AUTOSTART, CONTRACT, Parameter

OF_THE_MODEL = (
    "model",
    "statistics",
    "prompt_state",
    "device",
    "dtype",
    "fast",
    "precision",
    "calibration",
    "eight_bit_denoise",
    "offload",
    "torch_threads",
    "kv_slots",
    "scheduling",
    "lanes",
    "prefill_groups",
    "frames_together",
    "partition",
    "denoise_steps",
    "solver",
    "staggered",
    "seats_by_load",
    "time_rule",
    "seed",
    "noise",
    "language_answers",
    "language_max_tokens",
)
"""Names of the parameters that are the same as in the node inference."""

FLEET_SCHEDULER = (
    AUTOSTART,
    CONTRACT,
    *(parameter for parameter in INFERENCE if parameter.name in OF_THE_MODEL),
    Parameter(
        "policy",
        "fifo",
        "Whose turn it is: fifo, las, oldest, kairos, gfair, aged_remaining or one of another package "
        "(entry points vla_accel_ros.fleet_policies).",
    ),
    Parameter(
        "stale_s",
        0.2,
        "Observations that are older when their turn comes are taken anew [s].",
        minimum=0.01,
        maximum=60.0,
    ),
    Parameter(
        "call_s",
        0.1,
        "How long a new observation is waited for; others go meanwhile [s].",
        minimum=0.001,
        maximum=10.0,
    ),
    Parameter(
        "gone_s",
        10.0,
        "A robot that says nothing for so long is forgotten until it asks again [s].",
        minimum=0.5,
        maximum=3600.0,
    ),
    Parameter(
        "serve_s",
        5.0,
        "A replica that computes a chunk for longer is not waited for [s].",
        minimum=0.05,
        maximum=600.0,
    ),
    Parameter(
        "replicas",
        "local",
        "What computes: local, an engine in the node's process, or ray, engines in Ray actors "
        "(docs/fleet_replicas.md).",
        choices=("local", "ray"),
    ),
    Parameter(
        "ray_replicas",
        "edge:1",
        "With replicas ray: how many on which tier, nearest first, how much of a GPU each has, and what the "
        "network takes to it and back [s]: TIER:COUNT[:GPUS[:NETWORK_S]] ..., such as edge:1 "
        "cloud:2:0.5:0.04. GPUS is 1 where Ray has GPUs, unless device is cpu; the network is measured where "
        "it is not told.",
    ),
    Parameter(
        "ray_address",
        "",
        "With replicas ray: the cluster to join, host:port or auto for this machine's. Empty: one of the "
        "node's own, which ends with it.",
    ),
    Parameter(
        "start_s",
        300.0,
        "With replicas ray: how long a replica may take to load, to be prepared and measured [s].",
        minimum=1.0,
        maximum=7200.0,
    ),
    Parameter(
        "hedge",
        False,
        "A request that takes longer than 99 of 100 did is begun on another replica too, if one has room.",
    ),
    Parameter("most_robots", 64, "More robots are refused.", minimum=1, maximum=1024),
    Parameter(
        "most_load",
        0.9,
        "The share of the chunks that can be made which is promised to robots; the rest is for bursts.",
        minimum=0.05,
        maximum=1.0,
    ),
    Parameter(
        "in_time_s",
        0.0,
        "A robot is served while 99 of 100 chunks are expected, and found, within so long of their "
        "request [s]. 0: as long as a chunk can be of use, by chunk.max_age_s of the contract.",
        minimum=0.0,
        maximum=600.0,
    ),
    Parameter(
        "least_rate",
        0.5,
        "A robot for which less than this share of the chunks that it needs is left is refused; with more it "
        "is served at a lower rate.",
        minimum=0.01,
        maximum=1.0,
    ),
)
