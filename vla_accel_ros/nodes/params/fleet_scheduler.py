"""Parameters of the node fleet_scheduler: those of the model, as in the node inference, and of the
scheduling."""

from __future__ import annotations

from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.fleet.rules.rule import RuleOptions
from vla_accel_ros.fleet.serving.settings import Settings
from vla_accel_ros.nodes.params.engine import MODEL
from vla_accel_ros.nodes.params.parameter import AUTOSTART, CONTRACT, Parameter, parameters

FLEET_SCHEDULER = (
    AUTOSTART,
    Parameter(
        "end_if_refused",
        False,
        "End the process with status 1 if autostart cannot configure or activate it.",
        read_only=True,
    ),
    CONTRACT,
    *MODEL,
    *parameters(EngineConfig, fleet=True),
    Parameter(
        "rule",
        "fifo",
        "Scheduling rule: fifo, las, oldest, kairos, aged_remaining, aged_srpt or one of another package "
        "(entry points vla_accel_ros.fleet_rules).",
        former="policy",
    ),
    *parameters(RuleOptions),
    *parameters(Settings),
    Parameter(
        "replicas",
        "local",
        "Where chunks are computed: local, by an engine in the node's process, or ray, by engines in Ray "
        "actors (docs/lab/fleet_replicas.md).",
        choices=("local", "ray"),
    ),
    Parameter(
        "ray_replicas",
        "edge:1",
        "With replicas ray: how many replicas on which tier, nearest first, the share of a GPU for each, "
        "and the network's round trip [s]: TIER:COUNT[:GPUS[:NETWORK_S]] ..., such as edge:1 "
        "cloud:2:0.5:0.04. GPUS is 1 by default if Ray has GPUs, unless device is cpu; the network is "
        "measured if it is not given.",
    ),
    Parameter(
        "ray_address",
        "",
        "With replicas ray: the cluster to join, host:port or auto for this machine's. Empty: the node "
        "starts its own, which ends with it.",
    ),
    Parameter(
        "start_s",
        300.0,
        "With replicas ray: longest time for a replica to load, prepare and be measured [s].",
        minimum=1.0,
        maximum=7200.0,
    ),
    Parameter(
        "priorities",
        "",
        "Highest priority that robots get, NAMESPACE:PRIORITY ..., such as /left:100 *:10, where * is for "
        "all others. Without an entry a robot gets at most 0, whatever its fleet_priority.",
    ),
    Parameter("most_robots", 64, "More robots are refused.", minimum=1, maximum=1024),
    Parameter(
        "most_load",
        0.9,
        "Share of the possible chunks that is promised to robots; the rest is for bursts.",
        minimum=0.05,
        maximum=1.0,
    ),
    Parameter(
        "in_time_s",
        0.0,
        "A robot is served while 99 of 100 chunks are expected, and found, to come within this time after "
        "their request [s]. 0: as long as a chunk can be of use, by chunk.max_age_s of the contract.",
        minimum=0.0,
        maximum=600.0,
    ),
    Parameter(
        "least_rate",
        0.5,
        "A robot is refused if less than this share of the chunks that it needs is left; with more it is "
        "served at a lower rate.",
        minimum=0.01,
        maximum=1.0,
    ),
)
