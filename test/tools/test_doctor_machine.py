"""What is said of the machine: environments of processes, shared memory, the GPU; and how it is printed."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from rich.console import Console

from vla_accel_ros.contract.checks.findings import ERROR, OK, WARNING, Finding, error, ok, warning
from vla_accel_ros.nodes.running.environment import MALLOC, fastdds_profile
from vla_accel_ros.nodes.running.processes import Process, processes
from vla_accel_ros.tools.doctor import command as report
from vla_accel_ros.tools.doctor import gpu
from vla_accel_ros.tools.doctor.machine import Memory, judge, shared_memory

FAST = "rmw_fastrtps_cpp"
ROOM = Memory(8 << 30, 7 << 30, small=0)
IMAGE = 921_600
WELL = {**MALLOC, "FASTDDS_DEFAULT_PROFILES_FILE": str(fastdds_profile())}


def faults(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, str(finding)) for finding in findings if finding.level != OK]


def told(environment: dict, memory: Memory = ROOM, image_bytes: int = IMAGE, rmw: str = FAST, **own: str):
    return faults(judge(rmw, own, [Process(7, "inference", environment)], memory, image_bytes))


def test_doctor_finds_a_node_well_when_our_launch_files_started_it():
    assert told(WELL) == []


def test_doctor_names_a_process_that_fast_dds_cannot_reach(tmp_path):
    """Of any program: a camera's driver cannot look for it itself."""
    process = tmp_path / "proc" / "71"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("usb_cam\n")
    (process / "maps").write_text("7f00-7f01 rw-s 00000000 00:1b 77 /dev/shm/fastdds_port7413 (deleted)\n")
    assert not shared_memory(proc=tmp_path / "proc").lost  # it only sends there
    (process / "fd" / "5").symlink_to("/dev/shm/fastdds_port7413_el")
    ((level, text),) = told(WELL, replace(ROOM, lost=shared_memory(proc=tmp_path / "proc").lost))
    assert level == ERROR and text.startswith("usb_cam (process 71): ") and text.endswith("start it again")


def test_doctor_warns_of_an_environment_without_what_images_need():
    allocator, profile = told({})
    assert allocator[0] == profile[0] == WARNING
    assert all(name in allocator[1] for name in MALLOC) and "inference (process 7)" in allocator[1]
    assert "Fast DDS profile" in profile[1] and "549 KB" in profile[1]
    assert told(dict(MALLOC), rmw="rmw_cyclonedds_cpp") == []


@pytest.mark.parametrize(
    ("content", "level", "fact"),
    [
        ("<segment_size> 549000 </segment_size>", WARNING, "549000 bytes, an image has 921600"),
        ("<dds/>", WARNING, "no segment_size, an image has 921600"),
        (None, ERROR, "No such file or directory"),
    ],
)
def test_doctor_names_a_profile_that_does_not_do(tmp_path, content, level, fact):
    profile = tmp_path / "profile.xml"
    if content is not None:
        profile.write_text(content)
    ((reported, text),) = told({**WELL, "FASTDDS_DEFAULT_PROFILES_FILE": str(profile)})
    assert reported == level and str(profile) in text and fact in text


def test_doctor_warns_of_a_shell_in_another_graph_than_the_nodes():
    ((level, text),) = told({**WELL, "ROS_DOMAIN_ID": "5"})
    assert level == WARNING and "ROS_DOMAIN_ID 5, this shell in 0" in text and "=5, or give --domain" in text
    assert told({**WELL, "ROS_DOMAIN_ID": "5"}, ROS_DOMAIN_ID="5") == []
    ((_, text),) = told({**WELL, "RMW_IMPLEMENTATION": "rmw_zenoh_cpp"})
    assert "RMW_IMPLEMENTATION rmw_zenoh_cpp, this shell unset" in text
    ((_, text),) = faults(judge(FAST, {}, [], ROOM, IMAGE))
    assert "run vla doctor where they run" in text


def test_doctor_warns_of_shared_memory_that_is_short_or_holds_stock_segments():
    ((level, text),) = told(WELL, replace(ROOM, free=8 << 20))
    assert level == WARNING and "8 MB left of 8590 MB" in text and "--shm-size" in text
    ((level, text),) = told(WELL, replace(ROOM, small=2))
    assert level == WARNING and "2 living processes" in text and "549 KB, an image has 922 KB" in text
    assert told(WELL, replace(ROOM, small=2), image_bytes=150_000) == []


def test_doctor_finds_our_nodes_by_their_command_lines(tmp_path):
    for pid, command in {
        1: "python3\0-m\0vla_accel_ros.nodes.inference\0--ros-args\0",
        12: "python3\0/ws/install/vla_accel_ros/lib/vla_accel_ros/trajectory\0-r\0__ns:=/arms/left\0",
        3: "python3\0-m\0vla_accel_ros.tools.cli\0doctor\0",
        4: "vim\0/home/me/vla_accel_ros/README.md\0",
        5: "",
    }.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_bytes(command.encode())
        numbers = " ".join(["1"] * 10 + ["150", "50"] + ["0"] * 20)
        state = "T" if pid == 12 else "S"
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) name) {state} {numbers}")
        (tmp_path / str(pid) / "environ").write_bytes(b"ROS_DOMAIN_ID=4\0EMPTY=\0ODD\0TEXT=a=b\0")
    (tmp_path / "99").mkdir()
    environment, tick = {"ROS_DOMAIN_ID": "4", "EMPTY": "", "TEXT": "a=b"}, os.sysconf("SC_CLK_TCK")
    assert processes(tmp_path) == [
        Process(1, "inference", environment, "/", stopped=False, cpu_s=200 / tick),
        Process(12, "trajectory", environment, "/arms/left/", stopped=True, cpu_s=200 / tick),
    ]


def test_doctor_does_not_count_segments_of_dead_processes(tmp_path):
    for name in ("fastdds_0123456789abcdef", "fastdds_port7411", "fastdds_fedcba9876543210"):
        (tmp_path / name).write_bytes(bytes(1000))
        (tmp_path / f"{name}_el").touch()
    memory = shared_memory(tmp_path)
    assert memory.small == 0 and 0 < memory.free <= memory.size


GPU = gpu.Gpu("2.13", "12.8", "12.8", "H200", (9, 0), 100 << 30, 140 << 30, bfloat16=True)


BARE = gpu.Gpu("2.13+cpu")


@pytest.mark.parametrize(
    ("card", "device", "weights", "level", "fact"),
    [
        (GPU, "auto", 7 << 30, OK, "H200, 107.4 GB left of 150.3 GB, torch 2.13 for CUDA 12.8"),
        (replace(GPU, bfloat16=False), "auto", 0, ERROR, "H200 has no bfloat16 (capability 9.0)"),
        (replace(GPU, free=1 << 20), "cuda", 0, WARNING, "H200 has 0.0 GB left of 150.3 GB"),
        (replace(GPU, total=2 << 30), "cuda", 7 << 30, ERROR, "the checkpoint has 7.5 GB, H200 2.1 GB"),
        (BARE, "cuda", 0, ERROR, "torch 2.13+cpu is built for the CPU"),
        (BARE, "auto", 0, WARNING, "torch 2.13+cpu is built for the CPU"),
        (BARE, "cpu", 0, OK, "device is cpu"),
        (gpu.Gpu("2.13", "12.8"), "cuda", 0, ERROR, "no NVIDIA driver"),
        (
            gpu.Gpu("2.13", "13.0", "12.2"),
            "cuda",
            0,
            ERROR,
            "CUDA 13.0 sees no device, the driver knows CUDA 12.2",
        ),
    ],
)
def test_doctor_judges_the_gpu(card, device, weights, level, fact):
    finding = gpu.judge(card, device, "bfloat16", weights)[0]
    assert (finding.level, finding.about) == (level, "gpu") and fact in finding.fact


def test_doctor_says_what_fast_stages_lack_on_a_gpu():
    def facts(**changes):
        return [finding.fact for finding in gpu.judge(replace(GPU, **changes), "cuda", "bfloat16", 0)]

    assert len(facts()) == 1
    assert "triton is not installed" in facts(triton=False)[1]
    assert "cannot be compiled" in facts(bindings=False)[1]
    assert len(facts(bindings=False, capability=(8, 9))) == 1


def test_doctor_looks_at_the_gpu_of_this_machine():
    import torch

    assert bool(gpu.look().name) == torch.cuda.is_available()


def test_doctor_prints_the_worst_first_and_the_fix_below(capsys):
    sections = {"streams": [ok("a", "fine"), warning("b", "slow", "hurry"), error("", "[gone]", "find it")]}
    why_not = [error("/trajectory", "held by the operator", "~/resume"), error("/a", "b", "c")]
    report.show(why_not, sections, Console(width=60, force_terminal=False))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "no, because /trajectory: held by the operator" in " ".join(lines[0])
    assert lines[1:4] == [["->", "~/resume"], ["and", "because", "/a:", "b"], ["->", "c"]]
    assert lines[4:] == [
        ["streams", "error", "[gone]"],
        ["->", "find", "it"],
        ["warning", "b:", "slow"],
        ["->", "hurry"],
        ["ok", "a:", "fine"],
        ["1", "errors,", "1", "warnings"],
    ]
    report.show([], {"streams": [ok("a", "fine")]}, Console(width=60, force_terminal=False))
    assert capsys.readouterr().out.splitlines()[0].endswith("? yes")


def test_doctor_json_has_everything():
    sections = {"streams": [warning("b", "slow", "hurry")]}
    entry = {"section": "streams", "level": WARNING, "about": "b", "what": "slow", "mend": "hurry"}
    counts = {"errors": 0, "warnings": 1, "findings": [entry]}
    assert json.loads(report.as_json([], sections)) == {"could_move": True, "why_not": [], **counts}
    reason = {"level": ERROR, "about": "/inference", "what": "hangs", "mend": "kill -9 7"}
    document = json.loads(report.as_json([error("/inference", "hangs", "kill -9 7")], sections))
    assert document == {"could_move": False, "why_not": [reason], **counts}
