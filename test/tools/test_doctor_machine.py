"""What is said of the machine: environments of processes, shared memory, the GPU; and how it is printed."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from rich.console import Console

from vla_accel_ros.contract.findings import ERROR, OK, WARNING, Finding, error, ok, warning
from vla_accel_ros.nodes.running.environment import MALLOC, fastdds_profile
from vla_accel_ros.nodes.running.processes import Process, processes
from vla_accel_ros.tools.doctor import gpu, report
from vla_accel_ros.tools.doctor.machine import Memory, judge, shared_memory

FAST = "rmw_fastrtps_cpp"
ROOM = Memory(8 << 30, 7 << 30, small=0)
IMAGE = 921_600
WELL = {**MALLOC, "FASTDDS_DEFAULT_PROFILES_FILE": str(fastdds_profile())}


def faults(found: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, str(finding)) for finding in found if finding.level != OK]


def told(environment: dict, memory: Memory = ROOM, image_bytes: int = IMAGE, rmw: str = FAST, **own: str):
    return faults(judge(rmw, own, [Process(7, "inference", environment)], memory, image_bytes))


def test_a_node_started_by_our_launch_files_is_well():
    assert told(WELL) == []


def test_a_process_that_fast_dds_cannot_reach(tmp_path):
    """Of any program: a camera's driver cannot look for it itself."""
    process = tmp_path / "proc" / "71"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("usb_cam\n")
    (process / "maps").write_text("7f00-7f01 rw-s 00000000 00:1b 77 /dev/shm/fastdds_port7413 (deleted)\n")
    assert not shared_memory(proc=tmp_path / "proc").lost  # it only sends there
    (process / "fd" / "5").symlink_to("/dev/shm/fastdds_port7413_el")
    ((level, sentence),) = told(WELL, replace(ROOM, lost=shared_memory(proc=tmp_path / "proc").lost))
    assert level == ERROR and sentence == (
        "usb_cam (process 71): receives nothing of this machine: Fast DDS has lost its shared memory after "
        "another was killed; start it again"
    )


def test_an_environment_without_what_images_need():
    assert told({}) == [
        (
            WARNING,
            "inference (process 7): runs without MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_, so that "
            "every large image costs page faults; start it with our launch files, which set it, or see the "
            "README",
        ),
        (
            WARNING,
            "inference (process 7): runs without a Fast DDS profile, whose stock segment of 549 KB loses "
            "larger images; start it with our launch files, which set it, or see the README",
        ),
    ]
    assert told(dict(MALLOC), rmw="rmw_cyclonedds_cpp") == []


def test_a_profile_that_does_not_do(tmp_path):
    small, none = tmp_path / "small.xml", tmp_path / "none.xml"
    small.write_text("<segment_size> 549000 </segment_size>")
    none.write_text("<dds/>")
    ((level, sentence),) = told({**WELL, "FASTDDS_DEFAULT_PROFILES_FILE": str(small)})
    assert level == WARNING and "has a segment of 549000 bytes, an image has 921600; raise" in sentence
    ((level, sentence),) = told({**WELL, "FASTDDS_DEFAULT_PROFILES_FILE": str(none)})
    assert level == WARNING and "has no segment_size, an image has 921600" in sentence
    ((level, sentence),) = told({**WELL, "FASTDDS_DEFAULT_PROFILES_FILE": str(tmp_path / "gone.xml")})
    assert level == ERROR and "gone.xml, which cannot be read (No such file or directory); fix" in sentence


def test_a_shell_in_another_graph_than_the_nodes():
    ((level, sentence),) = told({**WELL, "ROS_DOMAIN_ID": "5"})
    assert level == WARNING
    assert sentence == (
        "environment: our nodes on this machine are in ROS_DOMAIN_ID 5, this shell in 0; export "
        "ROS_DOMAIN_ID=5, or give --domain"
    )
    assert told({**WELL, "ROS_DOMAIN_ID": "5"}, ROS_DOMAIN_ID="5") == []
    ((_, sentence),) = told({**WELL, "RMW_IMPLEMENTATION": "rmw_zenoh_cpp"})
    assert "has RMW_IMPLEMENTATION rmw_zenoh_cpp, this shell unset; give every process" in sentence
    ((_, sentence),) = faults(judge(FAST, {}, [], ROOM, IMAGE))
    assert sentence.endswith("run vla doctor where they run, as the user who started them")


def test_shared_memory_that_is_short_or_holds_stock_segments():
    assert told(WELL, replace(ROOM, free=8 << 20)) == [
        (
            WARNING,
            "shared memory: /dev/shm has 8 MB left of 8590 MB; give the container a larger --shm-size, or "
            "remove what dead processes left there",
        )
    ]
    ((level, sentence),) = told(WELL, replace(ROOM, small=2))
    assert (
        level == WARNING
        and "2 living processes have Fast DDS's stock segment of 549 KB, an image has 922 KB" in (sentence)
    )
    assert told(WELL, replace(ROOM, small=2), image_bytes=150_000) == []


def test_our_nodes_are_found_by_their_command_lines(tmp_path):
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


def test_segments_of_dead_processes_do_not_count(tmp_path):
    for name in ("fastdds_0123456789abcdef", "fastdds_port7411", "fastdds_fedcba9876543210"):
        (tmp_path / name).write_bytes(bytes(1000))
        (tmp_path / f"{name}_el").touch()
    memory = shared_memory(tmp_path)
    assert memory.small == 0 and 0 < memory.free <= memory.size


GPU = gpu.Gpu("2.13", "12.8", "12.8", "H200", (9, 0), 100 << 30, 140 << 30, bfloat16=True)


@pytest.mark.parametrize(
    ("seen", "device", "weights", "level", "sentence"),
    [
        (
            GPU,
            "auto",
            7 << 30,
            OK,
            "gpu: H200, 107.4 GB left of 150.3 GB, torch 2.13 for CUDA 12.8, driver for",
        ),
        (
            replace(GPU, bfloat16=False),
            "auto",
            0,
            ERROR,
            "gpu: H200 has no bfloat16 (capability 9.0); set dtype to",
        ),
        (
            replace(GPU, free=1 << 20),
            "cuda",
            0,
            WARNING,
            "gpu: H200 has 0.0 GB left of 150.3 GB; normal while",
        ),
        (
            replace(GPU, total=2 << 30),
            "cuda",
            7 << 30,
            ERROR,
            "gpu: the checkpoint has 7.5 GB, H200 2.1 GB; set",
        ),
        (gpu.Gpu("2.13+cpu"), "cuda", 0, ERROR, "gpu: torch 2.13+cpu is built for the CPU"),
        (gpu.Gpu("2.13+cpu"), "auto", 0, WARNING, "gpu: torch 2.13+cpu is built for the CPU"),
        (gpu.Gpu("2.13+cpu"), "cpu", 0, OK, "gpu: not asked for: device is cpu"),
        (
            gpu.Gpu("2.13", "12.8"),
            "cuda",
            0,
            ERROR,
            "gpu: torch 2.13 sees no CUDA device, and there is no NVIDIA",
        ),
        (
            gpu.Gpu("2.13", "13.0", "12.2"),
            "cuda",
            0,
            ERROR,
            "gpu: torch 2.13 for CUDA 13.0 sees no device, the",
        ),
    ],
)
def test_the_gpu(seen, device, weights, level, sentence):
    found = gpu.judge(seen, device, "bfloat16", weights)[0]
    assert found.level == level and str(found).startswith(sentence)


def test_what_fast_stages_lack_on_a_gpu_is_said_beside_it():
    def said(**other):
        return [str(found) for found in gpu.judge(replace(GPU, **other), "cuda", "bfloat16", 0)]

    assert len(said()) == 1
    assert "triton is not installed" in said(triton=False)[1]
    assert "cannot be compiled" in said(bindings=False)[1]
    assert len(said(bindings=False, capability=(8, 9))) == 1


def test_the_gpu_of_this_machine_is_looked_at():
    import torch

    assert bool(gpu.look().name) == torch.cuda.is_available()


def test_the_table_has_the_worst_first_and_the_mend_below(capsys):
    found = {"streams": [ok("a", "fine"), warning("b", "slow", "hurry"), error("", "[gone]", "find it")]}
    why_not = [error("/trajectory", "held by the operator", "~/resume"), error("/a", "b", "c")]
    report.show(why_not, found, Console(width=60, force_terminal=False))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "could this robot move now? no, because /trajectory: held by the operator",
        "-> ~/resume",
        "and because /a: b",
        "-> c",
    ]
    assert [line.split() for line in lines[4:]] == [
        ["streams", "error", "[gone]"],
        ["->", "find", "it"],
        ["warning", "b:", "slow"],
        ["->", "hurry"],
        ["ok", "a:", "fine"],
        ["1", "errors,", "1", "warnings"],
    ]


def test_a_robot_that_could_move_is_told_so_first(capsys):
    report.show([], {"streams": [ok("a", "fine")]}, Console(width=60, force_terminal=False))
    assert capsys.readouterr().out.splitlines()[0] == "could this robot move now? yes"


def test_json_has_everything():
    found = {"streams": [warning("b", "slow", "hurry")]}
    entry = {"section": "streams", "level": WARNING, "about": "b", "what": "slow", "mend": "hurry"}
    counts = {"errors": 0, "warnings": 1, "findings": [entry]}
    assert json.loads(report.as_json([], found)) == {"could_move": True, "why_not": [], **counts}
    reason = {"level": ERROR, "about": "/inference", "what": "hangs", "mend": "kill -9 7"}
    told = json.loads(report.as_json([error("/inference", "hangs", "kill -9 7")], found))
    assert told == {"could_move": False, "why_not": [reason], **counts}
