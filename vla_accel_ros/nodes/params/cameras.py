"""Parameters of the nodes that send images, the simulated robot and a camera, which share three."""

from __future__ import annotations

from dataclasses import replace

from vla_accel_ros.nodes.params.parameter import Parameter, read_once

RING = Parameter(
    "ring", False, "Write each frame once into shared memory and send its handle on camera/<name>/frame."
)
RING_SLOTS = Parameter(
    "ring_slots",
    4,
    "Frames in the ring; one stays whole for (ring_slots - 1) periods of the camera.",
    minimum=2,
    maximum=64,
)
IMAGE_HZ = Parameter(
    "image_hz",
    -1.0,
    "Rate of camera/<name>/image_raw, sent only to subscribers [Hz]; 0 sends none, -1 every frame.",
    minimum=-1.0,
    maximum=240.0,
)

SIM_ROBOT = read_once(
    Parameter("task", "reach", "Task of the first scene.", choices=("reach", "place", "follow")),
    Parameter("seed", 0, "Seed of the first scene.", minimum=0),
    Parameter("image_width", 224, "Width of both cameras [px].", minimum=16, maximum=1920),
    Parameter("image_height", 224, "Height of both cameras [px].", minimum=16, maximum=1080),
    Parameter("camera_hz", 30.0, "Rate of both cameras [Hz].", minimum=1.0, maximum=120.0),
    RING,
    RING_SLOTS,
    IMAGE_HZ,
    Parameter(
        "joint_hz",
        125.0,
        "Rate of joint_states [Hz]. Rendering delays some messages; at least 100 a second should arrive.",
        minimum=10.0,
        maximum=500.0,
    ),
    Parameter("ground_truth_hz", 10.0, "Rate of ground_truth [Hz].", minimum=0.5, maximum=100.0),
    Parameter("plate", False, "Put a plate over the table, and a force sensor into the wrist."),
    Parameter("plate_m", 0.06, "Height of the plate's top [m].", minimum=0.05, maximum=0.2),
    Parameter(
        "force_slot",
        "",
        "Also write the force sensor's samples to this slot of shared memory; empty for none.",
    ),
    Parameter(
        "stopped_cameras",
        "",
        "Cameras to silence, comma separated (live), to see what the stack does when one stops.",
        live=True,
    ),
    Parameter(
        "command_delay_s",
        0.0,
        "Delay of trajectories to the controllers [s] (live), to see what a slow network does.",
        0.0,
        2.0,
        live=True,
    ),
)

CAMERA = read_once(
    Parameter("camera", "front", "Name of the camera; its topics are camera/<name>/..."),
    Parameter(
        "source",
        "/dev/video0",
        "A V4L2 device or its number, a GStreamer pipeline, a URL, a video file, or a folder of pictures.",
    ),
    Parameter("width", 0, "Width requested from a device [px]; 0 leaves its own.", 0, 8192),
    Parameter("height", 0, "Height requested from a device [px]; 0 leaves its own.", 0, 8192),
    Parameter("fps", 0.0, "Rate requested from a device or a recording [Hz]; 0 leaves its own.", 0.0, 1000.0),
    Parameter("fourcc", "", "Format requested from a device, such as MJPG or YUYV; empty leaves its own."),
    Parameter("loop", True, "Play a file or folder over and over; false plays it once."),
    Parameter("camera_info", "", "Calibration (YAML of camera_calibration); empty for none."),
    replace(RING, default=True),
    RING_SLOTS,
    IMAGE_HZ,
    Parameter(
        "jpeg_hz",
        0.0,
        "Rate of camera/<name>/image_raw/compressed, sent only to subscribers [Hz]; 0 sends none, -1 all.",
        minimum=-1.0,
        maximum=240.0,
    ),
    Parameter("jpeg_quality", 90, "Quality of the JPEG.", minimum=1, maximum=100),
)
