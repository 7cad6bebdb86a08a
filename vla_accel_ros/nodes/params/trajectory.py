"""Parameters of the node trajectory: how chunks become motion, and how the robot is released and
reclaimed."""

from __future__ import annotations

from vla_accel_ros.nodes.params.parameter import AUTOSTART, CONTRACT, Parameter

TRAJECTORY = (
    AUTOSTART,
    CONTRACT,
    Parameter(
        "mode",
        "blend",
        "How a new chunk follows the old one: block executes it to its end first, async replaces it, blend "
        "fades over, rtc has the inference node guide each chunk to continue the old one.",
        choices=("block", "async", "blend", "rtc"),
    ),
    Parameter("blend_s", 0.2, "Time over which blend fades from the old chunk to the new [s].", 0.0, 2.0),
    Parameter(
        "lead_s",
        0.03,
        "How long a trajectory is expected to take to its controller [s]; twice that of the old motion is "
        "kept. Measured deliveries raise it.",
        0.0,
        0.5,
    ),
    Parameter(
        "lead_max_s",
        0.15,
        "The most that measured deliveries raise lead_s to [s]; slower ones are warned of.",
        0.0,
        0.5,
    ),
    Parameter(
        "execution_horizon", 0, "Actions of a chunk that block executes before the next; 0 is all.", 0, 10_000
    ),
    Parameter(
        "stamp",
        "now",
        "Header stamp of a trajectory: now says when it begins, so that latency on the way costs nothing; "
        "zero lets the controller start it on arrival, for controllers on a machine with another clock, and "
        "uses 0.6 of the speed and half of the acceleration limits.",
        choices=("now", "zero"),
    ),
    Parameter(
        "after_restart",
        "hold",
        "After a process that did not end cleanly: hold comes up held until ~/resume, go_on goes on. What a "
        "person held or released stays so either way.",
        choices=("hold", "go_on"),
    ),
    Parameter(
        "chunks_from",
        "auto",
        "Where chunks come from: the topic action_chunk; the slot, shared memory that inference on this "
        "machine writes; auto: the slot where it is written and every controller is sent commands at a rate, "
        "else the topic.",
        choices=("auto", "topic", "slot"),
    ),
    Parameter("watchdog_hz", 50.0, "Rate of the age checks [Hz].", minimum=5.0, maximum=500.0),
    Parameter(
        "force_priority",
        0,
        "Real-time priority (SCHED_FIFO) of the thread of the force sensors; 0 leaves it as it is. Needs the "
        "right to it: rtprio in limits.conf, or CAP_SYS_NICE.",
        0,
        99,
    ),
    Parameter(
        "check_controllers",
        True,
        "Read each controller's parameters on activation, refuse to move where they would move the robot "
        "wrongly and warn where they make the motion worse.",
    ),
    Parameter(
        "controller_manager",
        "controller_manager",
        "Node of the controller manager: asked what each controller is, and to switch them.",
    ),
    Parameter(
        "release_by",
        "pause",
        "What ~/release does when the robot stands: pause sends nothing any more, switch also has the "
        "controller manager deactivate our controllers and activate release_to.",
        choices=("pause", "switch"),
    ),
    Parameter(
        "release_to",
        "",
        "Controllers, comma separated, that are active while ours are released by switch.",
    ),
    Parameter(
        "move_speed", 0.3, "Share of the velocity and acceleration limits that ~/home uses.", 0.01, 1.0
    ),
    Parameter(
        "move_path",
        0.0,
        "How far a joint may be off on its way home, for controllers with an action [rad or m]; 0 leaves it "
        "to the controller.",
        0.0,
        10.0,
    ),
    Parameter(
        "move_goal", 0.0, "How far off it may be in the end; 0 leaves it to the controller.", 0.0, 10.0
    ),
    Parameter(
        "move_time_s", 0.0, "How much later it may be there [s]; 0 leaves it to the controller.", 0.0, 60.0
    ),
    Parameter(
        "servo_gain",
        2.0,
        "How fast servo_joint pulls the measured joints to the commanded ones [1/s]: Servo takes velocities.",
        0.0,
        20.0,
    ),
)
