"""A camera as a node: any source that OpenCV can open, each frame written once into shared memory.

One thread captures and publishes; the executor only serves parameters and diagnostics, so a device that
blocks delays nothing else. If a source is gone, one line is logged and it is opened again at growing
intervals; the age limits downstream stop the robot meanwhile. It is a plain node, as drivers are: it has no
state for a lifecycle manager.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from sensor_msgs.msg import CameraInfo

from vla_accel_ros.contract.parts import NAME, NAME_FORM
from vla_accel_ros.nodes.camera.output import CameraOutput, Outputs
from vla_accel_ros.nodes.declare import declare, value
from vla_accel_ros.nodes.diagnostics import OK, WARN, Reporter, status
from vla_accel_ros.nodes.params.cameras import CAMERA
from vla_accel_ros.nodes.running.brief_log import BriefLogs
from vla_accel_ros.nodes.running.process import run
from vla_accel_ros.sensing.cameras.calibration import Calibration
from vla_accel_ros.sensing.cameras.capture import Capture, Settings, open_source
from vla_accel_ros.sensing.cameras.compressed import write_bgr

_LONGEST_NAME = 64  # its topics and its ring, with a namespace, keep to the longest name of each
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 8.0


class CameraNode(BriefLogs, Node):
    """The node camera; see the module docstring and nodes/params/cameras.py.

    Raises ValueError, one sentence, for parameters that cannot work and an invalid calibration.
    """

    def __init__(self) -> None:
        super().__init__("camera")
        declare(self, CAMERA)
        self._camera, self._source = value(self, "camera"), value(self, "source")
        if not re.fullmatch(NAME, self._camera) or len(self._camera) > _LONGEST_NAME:
            raise ValueError(
                f"camera is {self._camera[:80]!r}: give {NAME_FORM} that does not begin with a digit, "
                f"{_LONGEST_NAME} characters at most"
            )
        self._settings = Settings(*(value(self, n) for n in ("width", "height", "fps", "fourcc", "loop")))
        outputs = Outputs(
            *(value(self, n) for n in ("ring", "ring_slots", "image_hz", "jpeg_hz", "jpeg_quality"))
        )
        path = value(self, "camera_info")
        self._info = camera_info(Calibration.load(path)) if path else None
        self._output = CameraOutput(self, self._camera, outputs, self._info)
        self._stop = threading.Event()
        self._frames, self._reported = 0, 0
        self._opened, self._trouble, self._said = 0, "not open yet", ""
        self._size = (0, 0)
        first = self._open()
        self._reporter = Reporter(self, self._statuses)
        self._thread = threading.Thread(target=self._film, args=(first,), name="camera", daemon=True)
        self._thread.start()

    def destroy_node(self) -> None:
        """Stop capturing and remove the ring."""
        if hasattr(self, "_thread"):  # not if a parameter was refused
            self._stop.set()
            self._thread.join(2.0)
            self._output.close()
        super().destroy_node()

    def _open(self) -> Capture | None:
        """Open the source; None, with `trouble` set, if it is absent. Raises ValueError if it can never
        work."""
        try:
            capture = open_source(self._source, self._settings, self._stop.wait)
        except OSError as error:
            self._say(f"{error}; it is opened again until that works")
            return None
        self._opened += 1
        return capture

    def _film(self, capture: Capture | None) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._stop.is_set():
            if capture is None:
                self._stop.wait(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                try:
                    capture = self._open()
                except ValueError as error:
                    self._say(str(error))
                continue
            try:
                shot = capture.next()
                if shot is None:
                    self._say(f"{self._source} has ended")
                    return
                if self._stop.is_set():
                    return
                height, width = self._size = shot.bgr.shape[:2]
                stamp_ns = self.get_clock().now().nanoseconds - round(shot.age_s * 1e9)
                with self._output.frame(stamp_ns, height, width) as pixels:
                    write_bgr(shot.bgr, pixels)
            except ValueError as error:
                self._say(str(error))
                self._stop.wait(_FIRST_WAIT_S)
            except OSError as error:
                self._say(f"{error}; it is opened again until that works")
                capture.close()
                capture = None
            else:
                self._filmed()
                wait_s = _FIRST_WAIT_S

    def _filmed(self) -> None:
        """A frame was published."""
        self._frames += 1
        if self._trouble:
            self.get_logger().info(
                f"camera {self._camera}: {self._size[0]} x {self._size[1]} of {self._source}"
            )
            self._trouble = self._said = ""
            info = self._info
            if info is not None and (info.height, info.width) != self._size:
                self.get_logger().warning(
                    f"camera_info is of {info.height} x {info.width}, the frames are {self._size[0]} x "
                    f"{self._size[1]}: calibrate the camera at the size it sends"
                )

    def _say(self, trouble: str) -> None:
        """Log it, unless it was the last message."""
        self._trouble = trouble
        if trouble != self._said:
            self._said = trouble
            self.get_logger().error(f"camera {self._camera}: {trouble}")

    def _statuses(self) -> Sequence[DiagnosticStatus]:
        new, self._reported = self._frames - self._reported, self._frames
        values = {
            "frames": self._frames,
            "rate [Hz]": float(new),
            "opened": self._opened,
            "source": self._source,
        }
        return [
            status(
                f"camera {self._camera}", WARN if self._trouble else OK, self._trouble or "filming", values
            )
        ]


def camera_info(calibration: Calibration) -> CameraInfo:
    """The CameraInfo message of a calibration."""
    info = CameraInfo(height=calibration.height, width=calibration.width)
    info.distortion_model, info.d = calibration.model, list(calibration.d)
    info.k, info.r, info.p = list(calibration.k), list(calibration.r), list(calibration.p)
    return info


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of `ros2 run vla_accel_ros camera`."""
    return run(CameraNode, args)
