"""Parameters of the node trajectory: how chunks become motion, and how the robot is released and
reclaimed."""

from __future__ import annotations

from vla_accel_ros.control.contract import Options
from vla_accel_ros.nodes.params.parameter import AUTOSTART, CONTRACT, Parameter, parameters

TRAJECTORY = (
    AUTOSTART,
    CONTRACT,
    *parameters(Options),
    Parameter(
        "lead_s",
        0.03,
        "Expected delivery time of a trajectory to its controller [s]; the old motion is kept for twice "
        "that. Measured deliveries raise it.",
        0.0,
        0.5,
    ),
    Parameter(
        "lead_max_s",
        0.15,
        "Upper bound of lead_s as raised by measured deliveries [s]; slower ones are logged as a warning.",
        0.0,
        0.5,
    ),
    Parameter(
        "stamp",
        "now",
        "Header stamp of a trajectory: now says when it begins, so that delivery costs no time; zero lets "
        "the controller start it on arrival, for controllers on a machine with another clock, and uses 0.6 "
        "of the speed and half of the acceleration limits.",
        choices=("now", "zero"),
    ),
    Parameter(
        "after_restart",
        "hold",
        "After a process that did not end cleanly: hold comes up held until ~/resume, go_on continues. A "
        "person's hold or release stays in force either way.",
        choices=("hold", "go_on"),
    ),
    Parameter(
        "chunks_from",
        "auto",
        "Where chunks come from: topic: action_chunk; slot: shared memory that inference on this machine "
        "writes; auto: the slot if it is written and every controller is commanded at a fixed rate, else "
        "the topic.",
        choices=("auto", "topic", "slot"),
    ),
    Parameter("watchdog_hz", 50.0, "Rate of the age checks [Hz].", minimum=5.0, maximum=500.0),
    Parameter(
        "force_priority",
        0,
        "Real-time priority (SCHED_FIFO) of the thread of the force sensors; 0 leaves the default. It "
        "needs a permission: rtprio in limits.conf, or CAP_SYS_NICE.",
        0,
        99,
    ),
    Parameter(
        "check_controllers",
        True,
        "Read each controller's parameters on activation, refuse to move if they would move the robot "
        "wrongly, and warn if they make the motion worse.",
    ),
    Parameter(
        "controller_manager",
        "controller_manager",
        "Node of the controller manager, which says what each controller is, and switches them.",
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
        "move_goal",
        0.0,
        "How far a joint may be off at the end [rad or m]; 0 leaves it to the controller.",
        0.0,
        10.0,
    ),
    Parameter(
        "move_time_s", 0.0, "How late the joints may arrive [s]; 0 leaves it to the controller.", 0.0, 60.0
    ),
    Parameter(
        "success_topic",
        "",
        "A std_msgs/Bool that is true when the task of run_policy is done; empty for none.",
    ),
    Parameter(
        "success_service", "", "A std_srvs/Trigger that succeeds when the task is done; empty for none."
    ),
    Parameter(
        "success_question",
        "",
        "What to ask the model while a goal runs; an answer that begins with yes ends it. Empty for none.",
    ),
    Parameter("success_period_s", 1.0, "How often the service and the model are asked [s].", 0.1, 3600.0),
    Parameter(
        "servo_gain",
        2.0,
        "How fast servo_joint pulls the measured joints to the commanded position [1/s], since Servo takes "
        "velocities.",
        0.0,
        20.0,
    ),
)
