"""Parameters of the node inference for real-time chunking: how each chunk agrees with the one before."""

from __future__ import annotations

from vla_accel_ros.nodes.params.parameter import Parameter

CHUNKING = (
    Parameter(
        "rtc",
        "auto",
        "Real-time chunking, each chunk guided by the one before: auto while a trajectory node reports "
        "that it runs in mode rtc; always also for an executor that reports nothing.",
        choices=("auto", "always", "never"),
    ),
    Parameter(
        "rtc_method",
        "guidance",
        "How chunks agree: guidance works with any policy; trained is for a policy trained to take the "
        "actions executed meanwhile as input (rtc_training_max_delay in its config.json).",
        choices=("guidance", "trained"),
    ),
    Parameter(
        "rtc_mask",
        "exponential",
        "How strongly the actions after the delay must agree, over rtc_mask_horizon: fully (hard), or "
        "falling.",
        choices=("hard", "linear", "exponential"),
    ),
    Parameter(
        "rtc_mask_horizon",
        8,
        "How many actions after the delay must agree; more is smoother, but reacts later.",
        minimum=0,
        maximum=10_000,
    ),
    Parameter(
        "rtc_window", 10, "Number of recent chunks whose longest delay counts.", minimum=1, maximum=10_000
    ),
    Parameter(
        "rtc_delivery_s",
        0.01,
        "Time from a finished chunk to its arrival at the trajectory node, whose lead_s is added [s].",
        0.0,
        1.0,
    ),
    Parameter(
        "rtc_jacobian",
        "identity",
        "How guidance pulls the error back: identity is free, exact a backward pass per denoising step.",
        choices=("identity", "exact"),
    ),
)
