"""The `vla` command: what it says of wrong arguments, and how it ends."""

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
    ["eval-demo", "--json"],
    ["plan", "pi0", "--measure"],
    ["fleet-sim", "--workload", "libero_pi05", "--json"],
    ["fleet-trace", "none", "--out"],
    ["calibrate", "none", "--out"],
    ["trace", "--output"],
    ["tune", "--out"],
    ["policy", "--output"],
)
NAMED = (["say", "hi"], ["ask", "hi"], ["doctor"], ["trace"], ["policy"])


@pytest.mark.parametrize("command", NAMED, ids=lambda words: words[0])
@pytest.mark.parametrize("namespace", ["é", "a//b", "1a", "left arm", "a\n", "a" * 300])
def test_a_namespace_that_ros_does_not_have_is_refused_before_anything_starts(
    command: list[str], namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--namespace", namespace])
    assert ended.value.code == 2
    assert "is no ROS namespace: give names of letters, digits and _" in capsys.readouterr().err


@pytest.mark.parametrize("namespace", ["", "/", "arm", "/arm", "arm/", "/lab/arm_2/"])
def test_a_namespace_may_have_slashes_around_it(namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["policy", "--namespace", namespace]) == 0
    inference = "/".join(["", *filter(None, namespace.split("/")), "inference"])
    assert f'<enclave path="{inference}">' in capsys.readouterr().out


def vla(words: str, after: str) -> subprocess.CompletedProcess[str]:
    """Run `vla WORDS` in a shell, which continues with `after`; its output says the status of vla."""
    command = f"{sys.executable} -m vla_accel_ros.tools.cli {words} {after}; echo status ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("words", ["policy", "plan pi0 --device h200"], ids=["much", "little"])
def test_a_command_whose_reader_has_gone_ends_without_a_word(words: str) -> None:
    ended = vla(words, "| (exec <&-; sleep 0.1)")
    assert ended.stdout.split() == ["status", str(cli.SIGPIPE_STATUS)]
    assert ended.stderr == ""


def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_word() -> None:
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


def test_a_command_without_stdout_or_stderr_writes_to_nowhere() -> None:
    quiet = vla("policy", ">&-")
    assert (quiet.stdout.split(), quiet.stderr) == (["status", "0"], "")
    wrong = vla(f"policy --contract {os.devnull}/none", "2>&-")
    assert (wrong.stdout.split(), wrong.stderr) == (["status", "2"], "")


@pytest.mark.parametrize("command", WRITING, ids=" ".join)
def test_a_file_that_cannot_be_written_is_refused_before_anything_starts(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "x"):
        with pytest.raises(SystemExit) as ended:
            cli.main([*command, str(place)])
        assert ended.value.code == 2
        assert f"{place} cannot be written: name a file, in a folder of yours" in capsys.readouterr().err


def test_a_file_may_be_new_or_old_and_in_a_folder_that_is_made_for_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "robot.policy.xml"
    for _ in range(2):
        assert cli.main(["policy", "--output", str(file)]) == 0
        assert file.read_text().startswith("<?xml")
