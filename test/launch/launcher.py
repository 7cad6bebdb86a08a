"""A stand-in for `ros2 launch`: a process that starts the nodes of a launch file, and what becomes of it.

    python launcher.py <launch file> <where to write process ids> [name:=value ...]

As the launch system does, it starts them by its own thread, gives each a terminal of its own (emulate_tty),
reads what comes from there and passes SIGINT on. SIGTERM and SIGKILL just end it, and nobody else: that is
the point. Others' nodes are executables where `ros2 run` finds them, lib/PACKAGE of a prefix.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import stand_in


def main(path: str, ids: str, *arguments: str) -> int:
    for name, contents in stand_in.MODULES.items():
        module = ModuleType(name)
        vars(module).update(contents)
        sys.modules[name] = module
    nodes = stand_in.start(Path(path), **dict(argument.split(":=", 1) for argument in arguments))
    started: list[tuple[subprocess.Popen, int]] = []
    thread = threading.Thread(target=lambda: started.extend(map(start, nodes)))
    thread.start()
    thread.join()  # and ends: what is tied to a thread of the launcher would end with it
    for _, terminal in started:
        threading.Thread(target=copy, args=(terminal,), daemon=True).start()

    def interrupt(*_: object) -> None:
        for process, *_rest in started:
            process.send_signal(signal.SIGINT)

    signal.signal(signal.SIGINT, interrupt)
    written = Path(f"{ids}.new")
    written.write_text(json.dumps({node.name: process.pid for node, (process, _) in zip(nodes, started)}))
    written.rename(ids)
    return max(process.wait() for process, _ in started)


def start(node: stand_in.Started) -> tuple[subprocess.Popen, int]:
    """The process, and its terminal's other end."""
    command = [*program(node), "--ros-args", "-r", f"__node:={node.name}", *node.ros_arguments]
    for file in node.files:
        command += ["--params-file", str(file)]
    for name, value in node.parameters.items():
        command += ["-p", f"{name}:={str(value).lower() if isinstance(value, bool) else value}"]
    our_end, its_end = os.openpty()
    process = subprocess.Popen(
        command, env={**os.environ, **node.environment}, stdout=its_end, stderr=its_end
    )
    os.close(its_end)
    print(f"{node.name}: process started with pid [{process.pid}]", flush=True)
    return process, our_end


def program(node: stand_in.Started) -> list[str]:
    """Its command without arguments."""
    if node.package == "vla_accel_ros":
        return [sys.executable, "-m", f"vla_accel_ros.nodes.{node.executable}"]
    from ament_index_python.packages import get_package_prefix

    return [str(Path(get_package_prefix(node.package)) / "lib" / node.package / node.executable)]


def copy(terminal: int) -> None:
    with suppress(OSError):  # which is how a terminal ends whose other end nobody has
        while True:
            os.write(1, os.read(terminal, 4096))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
