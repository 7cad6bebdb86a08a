"""Every parameter of every node, as data: name, default, what it means, what it may be.

This is the one place a parameter is written down. The nodes declare from it (nodes/declare.py), the tests
check launch and parameter files against it, and it imports no rclpy so that both can. Lifecycle nodes read
their parameters in on_configure, so a change needs a deactivate - cleanup - configure - activate round
unless the description says "live".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Value = bool | int | float | str


@dataclass(frozen=True)
class Parameter:
    """One declared parameter.

    minimum, maximum: inclusive range of a number, None for none. choices: the allowed strings, empty for any.
    read_only: cannot change after the node has started.
    """

    name: str
    default: Value
    description: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    read_only: bool = False

    def __post_init__(self) -> None:
        self.check(self.default)

    def check(self, value: Value) -> None:
        """Raise TypeError or ValueError, in one sentence, for a value this parameter may not have."""
        if type(value) is not type(self.default):
            raise TypeError(
                f"parameter {self.name!r} is {value!r} of type {type(value).__name__}: "
                f"give a {type(self.default).__name__}"
            )
        if self.choices and value not in self.choices:
            raise ValueError(f"parameter {self.name!r} is {value!r}: give one of {', '.join(self.choices)}")
        low, high = self.minimum, self.maximum
        if not isinstance(value, str) and not (
            (low is None or value >= low) and (high is None or value <= high)
        ):
            raise ValueError(f"parameter {self.name!r} is {value!r}: give a value from {low} to {high}")


AUTOSTART = Parameter(
    "autostart",
    False,
    "Configure and activate by itself at start; false leaves that to a lifecycle manager.",
    read_only=True,
)
CONTRACT = Parameter(
    "contract",
    "",
    "Contract file (YAML) of the robot: cameras, joints, limits, controllers. Empty: the simulated arm's.",
)

INFERENCE = (
    AUTOSTART,
    CONTRACT,
    Parameter(
        "model",
        "",
        "Checkpoint folder of openpi (PyTorch or JAX), lerobot, OpenVLA or ours; `vla inspect` tells what it "
        "is. Empty: the bundled demo policy.",
    ),
    Parameter(
        "statistics",
        "",
        "Whose statistics, where the checkpoint has several: openpi's asset id, OpenVLA's data set.",
    ),
    Parameter(
        "prompt_state",
        "auto",
        "How pi0.5 has the state in its prompt: its own dimensions, padded to all of the network's (lerobot "
        "up to 0.4.4), or not at all; auto is what the checkpoint says.",
        choices=("auto", "own", "padded", "none"),
    ),
    Parameter(
        "device",
        "auto",
        "Where the model runs; auto takes CUDA when there is one.",
        choices=("auto", "cpu", "cuda"),
    ),
    Parameter(
        "dtype", "float32", "Number format of the weights and the KV cache.", choices=("float32", "bfloat16")
    ),
    Parameter(
        "torch_threads",
        1,
        "CPU threads of one torch operator; 0 leaves torch's own choice.",
        minimum=0,
        maximum=256,
    ),
    Parameter(
        "kv_slots",
        5,
        "Frames whose KV cache fits at once: one being written, the newest, one per reader.",
        minimum=4,
        maximum=64,
    ),
    Parameter(
        "vision_hz", 10.0, "Rate of the vision loop (encode and prefill) [Hz].", minimum=0.1, maximum=240.0
    ),
    Parameter(
        "action_hz",
        60.0,
        "Rate at which the action loop looks for work [Hz]; it denoises when there is a new prefix, and a "
        "model with a state token also when there is a new joint state.",
        minimum=0.1,
        maximum=1000.0,
    ),
    Parameter(
        "language_hz",
        1.0,
        "Rate at which a new answer is begun [Hz]; 0 asks nothing.",
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
        "A language run longer than this is a miss [s]; 0 is one period.",
        0.0,
        60.0,
    ),
    Parameter("language_max_tokens", 16, "Longest answer, in tokens.", minimum=1, maximum=512),
    Parameter("denoise_steps", 10, "Euler steps of flow matching per chunk.", minimum=1, maximum=64),
    Parameter(
        "time_rule",
        "auto",
        "How the flow time is stepped (models/sampling.py); auto is the rule of whoever trained the policy.",
        choices=("auto", "openpi", "lerobot"),
    ),
    Parameter("seed", 0, "Seed of the denoising noise; noise is a function of (seed, request).", minimum=0),
    Parameter(
        "rtc",
        "auto",
        "Real-time chunking, each chunk guided by the one before: auto while a trajectory node tells that it "
        "runs in mode rtc; always is for an executor that tells nothing.",
        choices=("auto", "always", "never"),
    ),
    Parameter(
        "rtc_method",
        "guidance",
        "How chunks agree: by guidance, which any policy takes; or trained, for one trained to be given what "
        "is executed meanwhile (rtc_training_max_delay in its config.json).",
        choices=("guidance", "trained"),
    ),
    Parameter(
        "rtc_mask",
        "exponential",
        "How strongly the actions after the delay must agree, over rtc_mask_horizon: fully, or falling.",
        choices=("hard", "linear", "exponential"),
    ),
    Parameter(
        "rtc_mask_horizon",
        8,
        "How many actions after the delay must agree at all; more is smoother and answers later.",
        minimum=0,
        maximum=10_000,
    ),
    Parameter(
        "rtc_window", 10, "Of how many last chunks the longest delay counts.", minimum=1, maximum=10_000
    ),
    Parameter(
        "rtc_delivery_s",
        0.01,
        "From a finished chunk to its arrival at the trajectory node, whose lead_s comes on top [s].",
        0.0,
        1.0,
    ),
    Parameter(
        "rtc_jacobian",
        "identity",
        "How the error is pulled back: identity costs nothing, exact a backward pass per denoising step.",
        choices=("identity", "exact"),
    ),
)

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
        "How long a trajectory may take to reach its controller; that much of the old motion is kept [s].",
        0.0,
        0.5,
    ),
    Parameter(
        "execution_horizon", 0, "Actions of a chunk that block executes before the next; 0 is all.", 0, 10_000
    ),
    Parameter(
        "zero_end", True, "End every trajectory at rest; joint_trajectory_controller demands it since Jazzy."
    ),
    Parameter(
        "stamp",
        "now",
        "Header stamp of a trajectory: now says when it begins, so that latency on the way costs nothing; "
        "zero lets the controller start it on arrival, for controllers on a machine with another clock.",
        choices=("now", "zero"),
    ),
    Parameter("watchdog_hz", 50.0, "Rate of the age checks [Hz].", minimum=5.0, maximum=500.0),
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

RING = Parameter(
    "ring",
    False,
    "Write each frame once into shared memory and send its handle on camera/<name>/frame.",
    read_only=True,
)
RING_SLOTS = Parameter(
    "ring_slots",
    4,
    "Frames in the ring; one stays whole for (ring_slots - 1) periods of the camera.",
    minimum=2,
    maximum=64,
    read_only=True,
)
IMAGE_HZ = Parameter(
    "image_hz",
    -1.0,
    "Rate of camera/<name>/image_raw, sent while somebody listens [Hz]; 0 sends none, -1 every frame.",
    minimum=-1.0,
    maximum=240.0,
    read_only=True,
)

SIM_ROBOT = (
    Parameter(
        "task", "reach", "Task of the first scene.", choices=("reach", "place", "follow"), read_only=True
    ),
    Parameter("seed", 0, "Seed of the first scene.", minimum=0, read_only=True),
    Parameter("image_width", 224, "Width of both cameras [px].", minimum=16, maximum=1920, read_only=True),
    Parameter("image_height", 224, "Height of both cameras [px].", minimum=16, maximum=1080, read_only=True),
    Parameter("camera_hz", 30.0, "Rate of both cameras [Hz].", minimum=1.0, maximum=120.0, read_only=True),
    RING,
    RING_SLOTS,
    IMAGE_HZ,
    Parameter(
        "joint_hz",
        125.0,
        "Rate of joint_states [Hz]; rendering delays some, and at least 100 a second should arrive.",
        minimum=10.0,
        maximum=500.0,
        read_only=True,
    ),
    Parameter(
        "ground_truth_hz", 10.0, "Rate of ground_truth [Hz].", minimum=0.5, maximum=100.0, read_only=True
    ),
    Parameter(
        "stopped_cameras",
        "",
        "Cameras to silence, comma separated (live): shows what the stack does when one stops.",
    ),
)

CAMERA = (
    Parameter("camera", "front", "Name of the camera; its topics are camera/<name>/...", read_only=True),
    Parameter(
        "source",
        "/dev/video0",
        "A V4L2 device or its number, a GStreamer pipeline, a URL, a video file, or a folder of pictures.",
        read_only=True,
    ),
    Parameter("width", 0, "Width asked of a device [px]; 0 leaves its own.", 0, 8192, read_only=True),
    Parameter("height", 0, "Height asked of a device [px]; 0 leaves its own.", 0, 8192, read_only=True),
    Parameter(
        "fps",
        0.0,
        "Rate asked of a device or a recording [Hz]; 0 leaves its own.",
        0.0,
        1000.0,
        read_only=True,
    ),
    Parameter(
        "fourcc", "", "Format asked of a device, such as MJPG or YUYV; empty: its own.", read_only=True
    ),
    Parameter("loop", True, "Play a file or folder over and over; false plays it once.", read_only=True),
    Parameter("camera_info", "", "Calibration (YAML of camera_calibration); empty for none.", read_only=True),
    replace(RING, default=True),
    RING_SLOTS,
    IMAGE_HZ,
    Parameter(
        "jpeg_hz",
        0.0,
        "Rate of camera/<name>/image_raw/compressed, sent while somebody listens [Hz]; 0 sends none, -1 all.",
        minimum=-1.0,
        maximum=240.0,
        read_only=True,
    ),
    Parameter("jpeg_quality", 90, "Quality of the JPEG.", minimum=1, maximum=100, read_only=True),
)

RECORDER = (
    AUTOSTART,
    CONTRACT,
    Parameter(
        "record_dir",
        "",
        "Where bags go, each in a folder named by robot and time. Empty: bags, where the node was started.",
    ),
    Parameter(
        "writer",
        "auto",
        "What writes the bag: rosbag2, or mcap without it; auto takes rosbag2 where it is installed.",
        choices=("auto", "rosbag2", "mcap"),
    ),
    Parameter("compression", "none", "Of the bag: zstd costs processor time.", choices=("none", "zstd")),
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

NODES: dict[str, tuple[Parameter, ...]] = {
    "inference": INFERENCE,
    "trajectory": TRAJECTORY,
    "sim_robot": SIM_ROBOT,
    "camera": CAMERA,
    "recorder": RECORDER,
}
