"""A robot's first hour, on stand-ins of drivers: each step that a new user takes, and their mistakes.

    python bench/first_hour.py [--robots NAME ...] [--only MISTAKE ...]

Part steps: for a UR5e, an SO-101 and an ALOHA (bench/robots) each command from the checkpoint to motion, what
it printed last, its seconds, and how many values a person had to fill in. Part mistakes: ten mistakes on the
UR5e, and whether the command that should tell each did. The driver and our nodes are processes of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from robots.drivers import ROBOTS, RobotDriver
from robots.mistakes import CHECK, CONTRACT, MAKE, MISTAKES, MODEL, Mistake
from robots.policies import write_policy
from run import Bench, Given, Row, main, write
from vla_accel_ros.contract.contract import Contract, Joint
from vla_accel_ros.tools.contract.write import fill
from vla_accel_ros.tools.running.graph import own_graph
from vla_accel_ros.tools.running.processes import NodeProcess, NodeProcesses, arguments

WHOSE = {"ur5e": "UR5e", "so101": "SO-101", "aloha": "ALOHA"}
SAY = 'say "reach the red block" --timeout 120'
LONGEST_S = 240.0


def mapping(driver: RobotDriver) -> str:
    """Which camera is which, as its user knows: in the order of the contract."""
    images = [camera.image for camera in driver.contract.cameras]
    return " ".join(f"/{camera.topic}={image}" for camera, image in zip(driver.cameras, images))


def completed(text: str, contract: Contract) -> str:
    """The contract with what a person knows: this robot's acceleration, units, maps and time step."""
    values = {"acceleration": "5.0", "step_dt_s": f"{contract.chunk.step_dt_s:.4f}", "actions": "joints"}
    joints = {joint.name: joint for joint in contract.joints}
    name, lines = "", []
    for line in text.split("\n"):
        if match := re.match(r"  - name: (\w+)", line):
            name = match[1]
        if line.startswith("    action: ???"):
            line = f"    action: {joints[name].action}"
        if not line.startswith("    unit: ???"):
            lines.append(line)
        if re.match("    action: (delta|absolute)", line):
            lines += units(joints[name])
    return fill("\n".join(lines), values)


def units(joint: Joint) -> list[str]:
    """How the policy counts a joint, where it is not in radians as the robot does."""
    if joint.gain is not None:
        ends = [joint.lower, joint.upper]
        return [f"    map: {{robot: {ends}, policy: {[joint.gain * end + joint.offset for end in ends]}}}"]
    lines = [f"    unit: {joint.unit}"] if joint.unit != "rad" else []
    return lines + [f"    sign: {joint.sign}"] * (joint.sign != 1)


class Desk:
    """A terminal in a folder, in a graph of its own. folder: has the model. environment: of processes."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = (
            folder,
            {**environment, "XDG_STATE_HOME": str(folder), "COLUMNS": "400"},
        )

    def vla(self, command: str) -> tuple[int, str, float]:
        """Status, output and seconds of a command of vla."""
        began_s = time.monotonic()
        done = subprocess.run(
            f"{sys.executable} -m vla_accel_ros.tools.cli {command}",
            shell=True,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=LONGEST_S,
        )
        return done.returncode, done.stdout + done.stderr, time.monotonic() - began_s

    @contextmanager
    def driver(self, name: str, mistake: str = "") -> Iterator[None]:
        """A driver's process, which has begun to publish."""
        command = [sys.executable, __file__, "--drive", name, "--mistake", mistake]
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None and "runs" in process.stdout.readline()
            yield
        finally:
            process.terminate()
            process.wait(20.0)


def last_line(output: str) -> str:
    """What somebody reads last, without the folder of this run."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return re.sub(r"/\S*/(?=robot\.yaml|files|model)", "", lines[-1])[:200] if lines else ""


def hour(name: str, desk: Desk) -> Row:
    """The steps of one robot."""
    driver = ROBOTS[name]()
    write_policy(desk.folder / MODEL, driver.contract)
    steps: list[Row] = []

    def step(what: str, command: str) -> str:
        status, output, seconds = desk.vla(command)
        shown = re.sub(r" --map .*", " --map ...", command)
        steps.append(
            {
                "step": what,
                "command": f"vla {shown}",
                "s": round(seconds, 1),
                "status": status,
                "last": last_line(output),
            }
        )
        return output

    with desk.driver(name):
        step("what the checkpoint needs", f"inspect {MODEL} | sed -n 1p")
        make = re.sub("--map .*", f"--map {mapping(driver)}", MAKE)
        step("the contract, from the robot", f"{make} > {CONTRACT}")
        text = (desk.folder / CONTRACT).read_text()
        step("what is missing in it", f"contract check {CONTRACT}")
        asked = len(re.findall(r"^[^#]*\?\?\?", text, re.MULTILINE))
        (desk.folder / CONTRACT).write_text(completed(text, driver.contract))
        step("whether the model fits it", CHECK)
        step("whether the robot fits it", f"doctor --contract {CONTRACT} --model {MODEL} --seconds 1")
        shared = {"autostart": True, "contract": str(desk.folder / CONTRACT)}
        model = {**shared, "model": str(desk.folder / MODEL), "steps": 2, "language_hz": 0.0}
        given = {"trajectory": shared, "inference": model}
        logs = [
            NodeProcess(n, arguments(n, p), desk.environment, desk.folder / f"{n}.log")
            for n, p in given.items()
        ]
        nodes = NodeProcesses(logs)
        nodes.start()
        try:
            step("motion, from the start of our nodes", SAY)
            if steps[-1]["status"]:
                print(*(f"{node.name}: {node.last_words()}" for node in logs), sep="\n", file=sys.stderr)
        finally:
            nodes.end()
            nodes.sweep()
    return {
        "robot": WHOSE[name],
        "filled_in": asked,
        "s": round(sum(s["s"] for s in steps), 1),
        "steps": steps,
    }


def told(mistake: Mistake, desk: Desk, text: str) -> Row:
    """Whether a mistake is told, by which command, and the line."""
    (desk.folder / CONTRACT).write_text(mistake.contract(text))
    with desk.driver("ur5e", mistake.name):
        _, output, seconds = desk.vla(mistake.command)
    found = re.search(mistake.told, output)
    lines = output[output.rfind("\n", 0, found.start()) + 1 :].splitlines() if found else [""]
    return {
        "mistake": mistake.name,
        "command": "vla "
        + " ".join(mistake.command.split()[: 2 if "contract" in mistake.command.split()[0] else 1]),
        "told": found is not None,
        "by_eye": mistake.by_eye,
        "s": round(seconds, 1),
        "line": re.sub(r"/\S*/(?=robot\.yaml|files|model)", "", " ".join(lines[0].split()))[:240],
    }


def part(work: Callable[[Given, Desk], Row]) -> Callable[[Given], Row]:
    """A part of the bench, in a graph and a folder of its own."""

    def measure(given: Given) -> Row:
        with tempfile.TemporaryDirectory() as folder, own_graph() as environment:
            return work(given, Desk(Path(folder), {**os.environ, **environment}))

    return measure


def steps(given: Given, desk: Desk) -> Row:
    """All robots."""
    for name in given.robots:
        (folder := desk.folder / name).mkdir()
        row = hour(name, Desk(folder, desk.environment))
        kept = keep(given, "robots", "robot", row)
        print(row["robot"], row["s"], "s", *(step["last"] for step in row["steps"]), sep="\n  ", flush=True)
    return {"robots": kept}


def mistakes(given: Given, desk: Desk) -> Row:
    """All mistakes, on the contract that is written for the well robot."""
    driver = ROBOTS["ur5e"]()
    write_policy(desk.folder / MODEL, driver.contract)
    write_policy(desk.folder / "other", ROBOTS["aloha"]().contract)
    with desk.driver("ur5e"):
        status, output, _ = desk.vla(f"{MAKE} > {CONTRACT}")
    if status:
        raise RuntimeError(output)
    text = completed((desk.folder / CONTRACT).read_text(), driver.contract)
    for mistake in MISTAKES:
        if not given.only or mistake.name in given.only:
            row = told(mistake, desk, text)
            kept = keep(given, "mistakes", "mistake", row)
            print(*row.values(), sep=" | ", flush=True)
    return {"mistakes": kept}


def keep(given: Given, rows: str, key: str, row: Row) -> list[Row]:
    """All rows with this one in its place, also in the file, so that an interrupted run keeps its results."""
    others = [other for other in given.document.get(rows, []) if other[key] != row[key]]
    given.document[rows] = [*others, row]
    write(given.file, given.document)
    return given.document[rows]


def options(add: Callable[..., Any]) -> None:
    """Which robots, which mistakes."""
    add("--robots", nargs="+", choices=list(WHOSE), default=list(WHOSE), help="of part steps")
    add("--only", nargs="+", choices=[m.name for m in MISTAKES], help="of part mistakes")


BENCH = Bench(
    "first_hour",
    options=options,
    parts={"steps": part(steps), "mistakes": part(mistakes)},
    rows="mistakes",
    smoke="--parts mistakes --only QoS",
    starts_nodes=True,
)


def drive(name: str, mistake: str) -> None:
    """A driver, until this process is ended."""
    import signal
    import threading

    from robots.running import RunningDriver

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    change = next((m.driver for m in MISTAKES if m.name == mistake), lambda driver: driver)
    with RunningDriver(change(ROBOTS[name]())):
        print(f"{name} runs", flush=True)
        ended.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        drive(sys.argv[2], sys.argv[4])
    else:
        sys.exit(main(BENCH))
