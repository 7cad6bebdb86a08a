"""The share of two cameras' images that arrives, by the size of Fast DDS' shared-memory segment.

    python bench/fastdds_segment.py [--seconds S]

One process publishes two best-effort 30 Hz image topics, another receives them as serialized messages, on
this host. "stock" is Fast DDS without our profile. Writes bench/results/fastdds_segment.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vla_accel_ros.nodes.running.environment import fastdds_profile
from vla_accel_ros.tools.provenance import provenance

RESULT = Path(__file__).parent / "results" / "fastdds_segment.json"
CAMERAS = ("front", "wrist")
RATE_HZ = 30
SIZES = ((640, 480), (1280, 720))
SEGMENTS_MB = (None, 4, 8, 12, 16)


def publish(width: int, height: int, seconds: float) -> None:
    """Publish both cameras for a time and print how many images were sent."""
    import rclpy
    from rclpy.qos import qos_profile_sensor_data
    from sensor_msgs.msg import Image

    rclpy.init()
    node = rclpy.create_node("cameras")
    publishers = [node.create_publisher(Image, name, qos_profile_sensor_data) for name in CAMERAS]
    image = Image(width=width, height=height, encoding="rgb8", step=3 * width, data=bytes(3 * width * height))
    while any(publisher.get_subscription_count() == 0 for publisher in publishers):
        time.sleep(0.01)
    begin = time.monotonic()
    frames = int(seconds * RATE_HZ)
    for frame in range(frames):
        for publisher in publishers:
            publisher.publish(image)
        time.sleep(max(0.0, begin + (frame + 1) / RATE_HZ - time.monotonic()))
    time.sleep(0.5)
    print(frames * len(CAMERAS))


def receive() -> None:
    """Count images until the publishers are gone, and print the count."""
    import rclpy
    from rclpy.qos import qos_profile_sensor_data
    from sensor_msgs.msg import Image

    rclpy.init()
    node = rclpy.create_node("engine")
    received: list[int] = []
    for name in CAMERAS:
        node.create_subscription(
            Image, name, lambda message: received.append(len(message)), qos_profile_sensor_data, raw=True
        )
    seen = False
    while not seen or node.count_publishers(CAMERAS[0]):
        seen = seen or node.count_publishers(CAMERAS[0]) > 0
        rclpy.spin_once(node, timeout_sec=0.1)
    print(len(received))


def arrived(segment_mb: int | None, width: int, height: int, seconds: float) -> float:
    """Return the share of the images that arrives, 0 to 1."""
    names = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    with tempfile.TemporaryDirectory() as folder:
        if segment_mb is not None:
            profile = Path(folder) / "profile.xml"
            segment = f"<segment_size>{segment_mb << 20}</segment_size>"
            profile.write_text(
                re.sub(r"<segment_size>\d+</segment_size>", segment, fastdds_profile().read_text())
            )
            environment[names[0]] = str(profile)
        me = [sys.executable, __file__]
        receiver = subprocess.Popen([*me, "--receive"], env=environment, stdout=subprocess.PIPE, text=True)
        size = ["--publish", f"{width}x{height}", "--seconds", str(seconds)]
        sender = subprocess.run([*me, *size], env=environment, capture_output=True, text=True, check=True)
        counted, _ = receiver.communicate(timeout=60)
    return int(counted) / int(sender.stdout)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--publish", metavar="WxH", help=argparse.SUPPRESS)
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        return receive()
    if arguments.publish:
        width, height = map(int, arguments.publish.split("x"))
        return publish(width, height, arguments.seconds)
    rows = []
    for segment_mb in SEGMENTS_MB:
        for width, height in SIZES:
            part = arrived(segment_mb, width, height, arguments.seconds)
            rows.append(
                {"segment_mb": segment_mb, "width": width, "height": height, "arrived": round(part, 3)}
            )
            segment = "stock" if segment_mb is None else f"{segment_mb} MB"
            print(f"{segment:>6}  2 x {width}x{height} at {RATE_HZ} Hz: {100 * part:5.1f} %", flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"rate_hz": RATE_HZ, "rows": rows, **provenance()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
