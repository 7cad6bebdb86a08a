"""Parameters of the node inference if a fleet makes its chunks; the executable fleet_inference reads them.

The node has all parameters of inference, so that one file serves both; those of the model have no effect
there.
"""

from __future__ import annotations

from vla_accel_ros.fleet.robot.client import ClientSettings
from vla_accel_ros.nodes.params.parameter import Parameter, parameters

LOCAL, FLEET, OPENPI = "local", "fleet", "openpi"
EXECUTABLES = {LOCAL: "inference", FLEET: "fleet_inference", OPENPI: "openpi_inference"}
"""Of the node inference, by its engine."""

ENGINE = Parameter(
    "engine",
    LOCAL,
    "Where chunks are made: local, by this node; fleet, by a fleet's scheduler, for a robot without a "
    "GPU (docs/guide/fleet.md); openpi, by a policy server (docs/guide/serve.md). bringup.launch.py starts "
    "the executable inference, fleet_inference or openpi_inference accordingly.",
    choices=(LOCAL, FLEET, OPENPI),
)

OF_A_FLEET = (
    ENGINE,
    Parameter(
        "fleet_images",
        "raw",
        "How uncompressed pictures travel: raw, as pixels without loss; jpeg, in about a tenth of the "
        "bytes: needed over a network that loses packets (docs/lab/fleet_replicas.md). Images that a camera "
        "sends compressed are passed on unchanged.",
        choices=("raw", "jpeg"),
    ),
    Parameter("fleet_jpeg_quality", 92, "Quality of fleet_images: jpeg.", minimum=1, maximum=100),
    *parameters(ClientSettings, prefix="fleet_"),
    Parameter(
        "fleet_answer_s",
        10.0,
        "A question is refused if it is not answered within this time [s].",
        0.5,
        600.0,
    ),
    Parameter(
        "fleet_priority",
        0,
        "Higher is served first; from 100 on before everything that waits. Above 0 only as far as the "
        "scheduler's parameter priorities grants it.",
        minimum=-1000,
        maximum=1000,
    ),
    Parameter(
        "fleet_chunks_per_s",
        0.0,
        "Chunks a second that the robot needs, by which the scheduler admits it [Hz]; 0: the rate that "
        "follows from chunk.max_age_s of the contract and fleet_ask_at_s.",
        0.0,
        100.0,
    ),
)
