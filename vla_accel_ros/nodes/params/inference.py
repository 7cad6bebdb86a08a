"""Parameters of the node inference: the model, its loops and engine, and those of chunking and of a fleet."""

from __future__ import annotations

from vla_accel_ros.control.chunking.guidance import WANTED
from vla_accel_ros.control.chunking.rtc import RtcSettings
from vla_accel_ros.control.horizon import ALL
from vla_accel_ros.engine.config import EngineConfig
from vla_accel_ros.nodes.params.engine import MODEL
from vla_accel_ros.nodes.params.fleet import OF_A_FLEET
from vla_accel_ros.nodes.params.parameter import AUTOSTART, CONTRACT, Parameter, parameters
from vla_accel_ros.nodes.params.server import OF_A_SERVER

CHUNKING = (
    Parameter(
        "rtc",
        "auto",
        "Real-time chunking, each chunk guided by the one before: auto while a trajectory node reports "
        "that it runs in mode rtc; always also for an executor that reports nothing.",
        choices=WANTED,
    ),
    *parameters(RtcSettings, prefix="rtc_"),
)

SUBTASKS = (
    Parameter(
        "subtasks",
        "none",
        "Who says the next subtask of a task: none acts on the task itself, model asks the model every "
        "subtask_period_s, topic takes next_subtask.",
        choices=("none", "model", "topic"),
    ),
    Parameter(
        "subtask_period_s",
        2.0,
        "Time between two questions for a subtask [s]. When none came for three of them, no chunk is made.",
        0.2,
        600.0,
    ),
    Parameter("subtask_question", "{task}", "What the model is asked; {task} is the instruction."),
)

INFERENCE = (
    AUTOSTART,
    CONTRACT,
    *SUBTASKS,
    Parameter(
        "after_restart",
        "keep",
        "What to do with the instruction after a process that did not end cleanly: keep continues it, "
        "forget waits for a new one. After a clean end it is always forgotten.",
        choices=("keep", "forget"),
    ),
    *MODEL,
    Parameter(
        "vision_hz", 10.0, "Rate at which frames are encoded and prefilled [Hz].", minimum=0.1, maximum=240.0
    ),
    Parameter(
        "action_hz",
        60.0,
        "Highest rate of chunks from one frame, for newer joints (a model with a state token) or, with "
        "guidance, newly committed points [Hz]; the first chunk of a new frame is made at once.",
        minimum=0.1,
        maximum=1000.0,
    ),
    Parameter(
        "chunk_slot",
        "auto",
        "Also write every chunk to shared memory, for a trajectory node on this machine "
        "(docs/lab/high_rate.md): auto unless another process already does, true refuses activation in that "
        "case, false sends messages only.",
        choices=("auto", "true", "false"),
    ),
    Parameter(
        "chunk_messages_hz",
        100.0,
        "Most chunks a second to publish as messages (action_chunk), for bags, viewers and other machines "
        "[Hz]; 0 is all.",
        minimum=0.0,
        maximum=1000.0,
    ),
    Parameter(
        "language_hz",
        1.0,
        "Rate at which the model continues its own prompt [Hz]; 0: only when it is asked. Texts that take "
        "longer than a period are written together.",
        minimum=0.0,
        maximum=60.0,
    ),
    Parameter(
        "vision_deadline_s", 0.0, "A vision run longer than this is a miss [s]; 0 is one period.", 0.0, 10.0
    ),
    Parameter(
        "action_deadline_s", 0.1, "An action run longer than this is a miss [s]; 0 is one period.", 0.0, 10.0
    ),
    Parameter(
        "language_deadline_s",
        0.0,
        "A forward of answers longer than this is a miss [s]; 0 is one period.",
        0.0,
        60.0,
    ),
    *parameters(EngineConfig),
    Parameter(
        "horizon",
        ALL,
        "How many leading actions of a chunk may be executed before another comes: all, static:N, or by "
        "its denoising: update_ratio:T, each with +least:N and +elastic:N; '; PATTERN=...' for tasks whose "
        "instruction matches (docs/lab/horizon.md).",
    ),
    *CHUNKING,
    *OF_A_FLEET,
    *OF_A_SERVER,
)
