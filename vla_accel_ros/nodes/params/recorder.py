"""Parameters of the node recorder: where the bag goes, and how much memory and disk it may use."""

from __future__ import annotations

from vla_accel_ros.nodes.params.parameter import AUTOSTART, CONTRACT, Parameter

RECORDER = (
    AUTOSTART,
    CONTRACT,
    Parameter(
        "record_dir",
        "",
        "Folder of the bags, each in a folder named by robot and time. Empty: the folder bags, where the "
        "node was started.",
    ),
    Parameter(
        "task",
        "",
        "Task of the episodes that begin from now on (vla record sets it). Empty: the instruction.",
        live=True,
    ),
    Parameter(
        "writer",
        "auto",
        "Of no effect: every bag is written by the mcap library, as a rosbag2 of one MCAP file.",
        choices=("auto", "rosbag2", "mcap"),
    ),
    Parameter(
        "compression", "none", "Compression of the bag; zstd costs processor time.", choices=("none", "zstd")
    ),
    Parameter(
        "queue_mb",
        256,
        "Messages that may wait for the disk; more are dropped and counted [MB].",
        minimum=1,
        maximum=65_536,
    ),
    Parameter(
        "keep_free_mb",
        1024,
        "Recording ends when the disk has less free than this [MB].",
        minimum=0,
        maximum=1_000_000,
    ),
)
