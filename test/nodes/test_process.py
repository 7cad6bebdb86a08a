"""What the process of a node is like once the node has been configured."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from fork_server import ForkServer
from running import NodeProcess, node_environment, shared_memory

from vla_accel_ros.interpreter import SWITCH_S, keep_loaded

PROGRAM = """
import gc, json, sys
from vla_accel_ros.nodes.running.lifecycle import ManagedNode
from vla_accel_ros.nodes.params.parameter import AUTOSTART
from vla_accel_ros.nodes.running.process import run

said = {"frozen": [gc.get_freeze_count()]}

class Told(ManagedNode):
    def __init__(self):
        super().__init__("told", (AUTOSTART,))
        self.create_timer(0.01, self.look)

    def look(self):
        if not self.active:
            return
        said["frozen"].append(gc.get_freeze_count())
        said["switch_s"] = sys.getswitchinterval()
        self.trigger_deactivate()
        self.trigger_cleanup()
        said["frozen"].append(gc.get_freeze_count())
        print(json.dumps(said), flush=True)
        raise SystemExit

raise SystemExit(run(Told, ["--ros-args", "-p", "autostart:=true"]))
"""


def ended(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, when it has ended."""
    return subprocess.run(
        [sys.executable, "-uc", program, *arguments],
        env=node_environment(folder),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_what_a_node_has_loaded_is_collected_no_more_until_it_is_cleaned_up(tmp_path):
    output = json.loads(ended(PROGRAM, tmp_path).stdout.splitlines()[0])
    started, configured, cleaned_up = output["frozen"]
    assert started == 0 and configured > 10_000 and cleaned_up == 0
    assert round(output["switch_s"], 6) == SWITCH_S


ENDS = """
import builtins, os, signal
from rclpy.node import Node
from vla_accel_ros.nodes.running.process import run

class Ends(Node):
    def __init__(self):
        super().__init__("ends")
        self.create_timer(0.01, lambda: os.kill(os.getpid(), signal.SIGINT))

class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

status = run(Ends)
builtins.late = Late()  # collected when the interpreter has given its signal handlers back
raise SystemExit(status)
"""


def test_a_ctrl_c_that_comes_in_the_end_of_the_interpreter_changes_no_status(tmp_path):
    assert ended(ENDS, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["-r", "__ns:=/a//b"], "__ns:=/a//b"),
        (["--params-file", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--log-level", "silly"], "--log-level silly"),
        (["--silly"], "['--silly']"),
        ([], "set HOME or ROS_LOG_DIR"),
    ],
)
def test_what_ros_refuses_at_start_is_one_line(given, said, tmp_path):
    environment = node_environment(tmp_path)
    if not given:
        environment = {name: environment[name] for name in environment if name not in ("HOME", "ROS_LOG_DIR")}
    arguments = ["--ros-args", *given]
    program = f"from vla_accel_ros.nodes.running.process import run; raise SystemExit(run(None, {arguments}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    # Libraries of ROS write there, too.
    lines = [line for line in done.stderr.splitlines() if line.startswith("cannot start")]
    assert (done.returncode, len(lines)) == (2, 1) and "Traceback" not in done.stderr
    assert lines[0].startswith("cannot start: ROS refuses the arguments or the environment: ")
    assert said in lines[0] and ", at /" not in lines[0]


ENDS_SLOWLY = """
import os, signal, sys, threading
from rclpy.node import Node
from vla_accel_ros.nodes.running import shutdown
from vla_accel_ros.nodes.running.process import run

shutdown.PATIENCE_S, shutdown.LONGEST_S = 0.1, float(sys.argv[1])
broken_off, shutdown._say = threading.Event(), lambda sentence: (print(sentence), broken_off.set())

class EndsSlowly(Node):
    def __init__(self):
        super().__init__("ends_slowly")
        self.create_timer(0.01, lambda: os.kill(os.getpid(), signal.SIGTERM))

    def destroy_node(self):
        broken_off.wait(float(sys.argv[2]))
        super().destroy_node()

raise SystemExit(run(EndsSlowly))
"""


@pytest.mark.parametrize(
    ("longest_s", "takes_s", "status", "said"),
    [
        (600.0, 0.5, 0, ""),
        (0.2, 600.0, 128 + signal.SIGTERM, "killed: the node was still ending 0.2 s after its end was due"),
    ],
)
def test_an_end_that_has_begun_is_left_more_time_than_a_node_that_is_busy(
    tmp_path, longest_s, takes_s, status, said
):
    done = ended(ENDS_SLOWLY, tmp_path, str(longest_s), str(takes_s))
    assert (done.returncode, done.stdout.strip()) == (status, said)


HOLDS_THE_INTERPRETER = """
import ctypes, os, signal
from rclpy.node import Node
from vla_accel_ros.nodes.running import shutdown
from vla_accel_ros.nodes.running.process import run

shutdown.PATIENCE_S = shutdown.LONGEST_S = shutdown.LAST_S = 0.25

class Stuck(Node):
    def __init__(self):
        super().__init__("stuck")
        self.create_timer(0.01, lambda: os.kill(os.getpid(), signal.SIGTERM))

    def destroy_node(self):
        while True:
            ctypes.PyDLL(None).sleep(600)

raise SystemExit(run(Stuck))
"""


def test_an_end_in_a_call_that_holds_the_interpreter_is_broken_off_and_says_where(tmp_path):
    done = ended(HOLDS_THE_INTERPRETER, tmp_path)
    assert done.returncode == 1
    assert "Timeout (0:00:00.500000)!" in done.stderr and "in destroy_node" in done.stderr


DOES_NOT_END = """
import os, signal, threading
from rclpy.node import Node
from vla_accel_ros.nodes.running import shutdown
from vla_accel_ros.nodes.running.process import run

shutdown.LEAVES_S = 0.5

class Leaves(Node):
    def __init__(self):
        super().__init__("leaves")
        self.create_timer(0.01, lambda: os.kill(os.getpid(), signal.SIGTERM))
        threading.Thread(target=threading.Event().wait, name="for ever").start()

raise SystemExit(run(Leaves))
"""


def test_a_thread_that_does_not_end_with_its_node_holds_up_no_process_and_is_named(tmp_path):
    done = ended(DOES_NOT_END, tmp_path)
    assert done.returncode == 1
    assert "Timeout (0:00:00.500000)!" in done.stderr and "in _shutdown" in done.stderr


LEAVES = """
import ctypes, sys
from vla_accel_ros.nodes.clients.client_node import ClientNode
from vla_accel_ros.nodes.running import shutdown

with ClientNode() as client:
    if len(sys.argv) > 1:
        shutdown.LEAVES_S = 0.5
        client._node.destroy_node = lambda: ctypes.PyDLL(None).sleep(600)
print("over")
"""


@pytest.mark.parametrize("stuck", [False, True])
def test_a_program_that_cannot_leave_the_graph_ends_and_says_where(tmp_path, stuck):
    done = ended(LEAVES, tmp_path, *["stuck"] * stuck)
    assert (done.returncode, done.stdout) == ((1, "") if stuck else (0, "over\n"))
    assert ("Timeout (0:00:00.500000)!" in done.stderr and "in leave_graph" in done.stderr) == stuck


@pytest.mark.parametrize("forked", [False, True])
def test_a_configured_node_that_ends_leaves_nothing_in_shared_memory(tmp_path, fork_server, forked):
    server: ForkServer | None = fork_server if forked else None
    process = NodeProcess("trajectory", tmp_path, server=server, autostart=True)
    try:
        process.wait_for_log("nobody publishes")
        mapped = shared_memory(process.process.pid)
        segments = {path for path in mapped if "port" not in path.name}  # others have its ports, too
    finally:
        status = process.end()
    assert status == 0 and segments and not [path for path in segments if path.exists()]


def test_garbage_of_before_is_collected_and_what_is_kept_can_be_kept_again():
    class Thing:
        def __init__(self) -> None:
            self.itself = self

    thing, finalized = Thing(), list[str]()
    weakref.finalize(thing, finalized.append, "gone")
    del thing
    try:
        keep_loaded()
        assert finalized == ["gone"]
        count = gc.get_freeze_count()
        keep_loaded()
        assert 0 < gc.get_freeze_count() <= count + 1000
    finally:
        gc.unfreeze()
