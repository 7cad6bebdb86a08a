"""The `vla` command: what it lists, what it says of wrong arguments, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vla_accel_ros.tools import cli

WRITING = (
    ["demo", "--json"],
    ["fleet-demo", "--json"],
    ["fleet-demo", "--svg"],
    ["fleet", "top", "--svg"],
    ["bench", "solvers", "--out"],
    ["eval", "--json"],
    ["plan", "pi0", "--measure"],
    ["fleet-sim", "--workload", "libero_pi05", "--json"],
    ["fleet-trace", "none", "--out"],
    ["calibrate", "none", "--out"],
    ["trace", "--output"],
    ["tune", "--out"],
    ["security", "--output"],
)
NAMED = (["say", "hi"], ["ask", "hi"], ["doctor"], ["trace"], ["security"])


def test_cli_lists_its_commands_when_called_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert capsys.readouterr().out == shown
    assert {"demo", "fleet-demo", "say", "doctor", "contract", "security", "replay", "plan"} <= set(
        shown.split()
    )


@pytest.mark.parametrize(
    ("command", "unknown", "meant"),
    [
        (["dem"], "'dem'", "demo"),
        (["say", "hi", "--timout", "3"], "--timout", "--timeout"),
        (["contract", "mak"], "'mak'", "make"),
        (["bench", "all"], "'all'", "device or solvers"),
        (["doctor", "--frobnicate"], "--frobnicate", "`vla doctor --help`"),
    ],
)
def test_cli_suggests_what_was_meant_when_a_word_is_unknown(
    command: list[str], unknown: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    assert ended.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert unknown in line and meant in line


def test_cli_takes_policy_for_security(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["policy"]) == 0
    rules = capsys.readouterr().out
    assert cli.main(["security"]) == 0
    assert capsys.readouterr().out == rules


@pytest.mark.parametrize("command", NAMED, ids=lambda words: words[0])
@pytest.mark.parametrize("namespace", ["é", "a//b", "1a", "left arm", "a\n", "a" * 300])
def test_cli_refuses_a_namespace_that_ros_does_not_have(
    command: list[str], namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--namespace", namespace])
    assert ended.value.code == 2
    assert "is no ROS namespace" in capsys.readouterr().err


@pytest.mark.parametrize("namespace", ["", "/", "arm", "/arm", "arm/", "/lab/arm_2/"])
def test_cli_takes_a_namespace_with_slashes_around_it(
    namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["security", "--namespace", namespace]) == 0
    inference = "/".join(["", *filter(None, namespace.split("/")), "inference"])
    assert f'<enclave path="{inference}">' in capsys.readouterr().out


def vla(words: str, after: str) -> subprocess.CompletedProcess[str]:
    """Run `vla WORDS` in a shell, which continues with `after`; its output says the status of vla."""
    command = f"{sys.executable} -m vla_accel_ros.tools.cli {words} {after}; echo status ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("words", ["security", "plan pi0 --device h200"], ids=["much", "little"])
def test_cli_ends_without_a_word_when_its_reader_has_gone(words: str) -> None:
    ended = vla(words, "| (exec <&-; sleep 0.1)")
    assert ended.stdout.split() == ["status", str(cli.SIGPIPE_STATUS)]
    assert ended.stderr == ""


def test_cli_ends_without_a_word_when_ctrl_c_comes_during_imports() -> None:
    # As if it came in the middle of the imports: when the last subcommand is looked for.
    program = (
        "import sys, signal, vla_accel_ros.tools.cli as cli\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.endswith('.calibrate'): signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.exit(cli.main(['plan', 'pi0']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (cli.INTERRUPTED, "", "")


def test_cli_writes_to_nowhere_when_it_has_no_stdout_or_stderr() -> None:
    quiet = vla("security", ">&-")
    assert (quiet.stdout.split(), quiet.stderr) == (["status", "0"], "")
    refused = vla(f"security --contract {os.devnull}/none", "2>&-")
    assert (refused.stdout.split(), refused.stderr) == (["status", "2"], "")


@pytest.mark.parametrize("command", WRITING, ids=" ".join)
def test_cli_refuses_a_file_that_cannot_be_written_before_anything_starts(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "x"):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, str(path)])
        assert ended.value.code == 2
        assert f"{path} cannot be written" in capsys.readouterr().err


def test_cli_makes_the_folder_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "robot.policy.xml"
    for _ in range(2):
        assert cli.main(["security", "--output", str(file)]) == 0
        assert file.read_text().startswith("<?xml")


SILENT = """
import threading
from vla_accel_ros.tools.working import working
with working("vla plan", {silent_s}):
    if {speaks}:
        print("begun", flush=True)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
print("ended", flush=True)
"""


@pytest.mark.parametrize("speaks", [False, True])
def test_cli_command_that_is_silent_on_a_terminal_says_that_it_works(speaks):
    ours, terminal = os.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", SILENT.format(speaks=speaks, silent_s=5.0 if speaks else 0.01)],
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    text = ""
    while "ended" not in text:
        text += os.read(ours, 200).decode()
    assert program.wait() == 0
    os.close(ours)
    assert ("vla plan: working" in text) is not speaks


def test_cli_missing_file_is_named_with_what_to_type(tmp_path, capsys):
    assert cli.main(["contract", "check", str(tmp_path / "none.yaml")]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "none.yaml") in error and "Errno" not in error and "--help" in error


@pytest.mark.parametrize(
    ("module", "fix"), [("rclpy", "source a ROS 2 workspace"), ("torch", "pip install torch")]
)
def test_cli_module_that_is_not_installed_is_named_with_what_to_type(module, fix, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, module, None)
    command = ["say", "go"] if module == "rclpy" else ["look"]
    for name in [name for name in sys.modules if name.startswith("vla_accel_ros.nodes.")]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(command) == 1
    error = capsys.readouterr().err
    assert f"{module} is not installed" in error and fix in error
