"""`vla plan`: what it prints, its status, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from vla_accel_ros.planning.device import load
from vla_accel_ros.planning.plan import make_plan
from vla_accel_ros.planning.sizes import MODELS
from vla_accel_ros.planning.work import Work
from vla_accel_ros.tools.cli import main
from vla_accel_ros.tools.plan.command import fleet_line

CONTRACT = Path(__file__).resolve().parents[2] / "config" / "contracts"


def test_a_plan_says_stages_memory_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "pi05", "--device", "h200", "--numbers"]) == 0
    out = capsys.readouterr().out
    for word in ("encode", "prefill", "denoise", "memory", "power", "promised", "the plan keeps the rates"):
        assert word in out
    assert "bandwidth_gb_s 4280 +- 3%, measured" in out


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--device", "rtx-4090"], "fits"),
        (["--device", "rtx-4090", "--vision-hz", "200"], "too slow"),
        (["--device", "orin-nano-8"], "does not fit"),
        (["--device", "l40s", "--robots", "2", "--action-hz", "1"], "fits"),
    ],
)
def test_a_plan_leads_with_its_verdict(
    options: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["plan", "pi05", *options])
    first = capsys.readouterr().out.splitlines()[0]
    main(["plan", "pi05", *options, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert first.startswith(f"{word}: ") and status == int(word != "fits")
    if found["fleet"] is not None:
        assert f"{found['fleet']['robots']} robots, {found['fleet']['memory_gb']:.1f} GB" in first
        return
    assert f"{sum(found['memory_bytes'].values()) / 1e9:.1f} GB" in first
    if word != "does not fit":
        assert f" {found['promised_hz']:.1f} Hz, " in first


def test_what_is_late_is_said_and_is_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "pi0", "--device", "orin-agx-64:30w", "--vision-hz", "30"]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("late by the plan: 30 frames")


@pytest.mark.parametrize(
    ("vision", "action", "mend"),
    [
        ("500", "0", r"vision at (\S+) Hz"),
        ("0", "500", r"action at (\S+) Hz"),
        ("500", "0.01", r"vision and action at (\S+) Hz"),
        ("90", "30", r"vision and action at (\S+) Hz"),
    ],
)
def test_a_rate_of_zero_is_neither_promised_nor_named_as_a_mend(
    vision: str, action: str, mend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "pi0", "--device", "l4"]
    assert main([*command, "--vision-hz", vision, "--action-hz", action]) == 1
    _, verdict, *_, promised = capsys.readouterr().out.splitlines()
    assert " 0.0 " not in promised and " 0.0 " not in verdict
    assert promised.endswith("Hz of frames no chunk: lower --vision-hz") == (vision != "0")
    found = re.search(rf"(?:with| or) {mend}$", verdict)
    assert found is not None, verdict
    rates = [found[1] if name in mend else "0" for name in ("vision", "action")]
    assert main([*command, "--vision-hz", rates[0], "--action-hz", rates[1]]) == 0  # it keeps what it says


def test_everything_is_there_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "smolvla", "--json", "--robots", "3", "--action-hz", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "smolvla" and found["fleet"]["robots"] >= 3
    assert found["numbers"].keys() == load("h200").numbers.keys()


def test_a_model_with_one_camera_is_planned_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "openvla", "--action-hz", "1", "--vision-hz", "1"]) == 0
    assert "1 views" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "options"),
    [("pi05", ["--precision", "w8a8", "--no-keep-exact", "--slots", "4"]), ("smolvla", ["--slots", "4"])],
)
def test_goal_plans_with_the_options_that_an_engine_would_have(
    model: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plans = []
    for settings in (["--goal", "memory"], options):
        assert main(["plan", model, "--json", *settings]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    assert plans[0] == plans[1]


def test_goal_plans_its_seats_with_a_slot_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "pi0", "--json", "--goal", "rate"]) == 0
    seated = make_plan(MODELS["pi0"], load("h200"), Work(), slots=5 + 10, seats=10)
    plan = json.loads(capsys.readouterr().out)
    assert (plan["memory_bytes"], plan["promised_hz"]) == (asdict(seated.memory), seated.vision_hz)


def test_option_on_the_command_line_goes_before_the_goal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "smolvla", "--goal", "memory", "--slots", "5", "--precision", "exact"]) == 0
    assert "goal memory sets answers 1; set by you: slots 5" in capsys.readouterr().out


def test_a_fleet_that_is_too_large_is_given_engines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "pi05", "--robots", "500", "--action-hz", "3"]) == 1
    assert "robots, but an engine serves" in capsys.readouterr().out
    assert fleet_line(40, 41).endswith("give 2 engines")


def test_a_fleet_needs_memory_and_young_chunks_too(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = ["--robots", "1", "--action-hz", "0.2"]
    assert main(["plan", "openvla", "--device", "orin-nx-16", *fleet]) == 1
    out = capsys.readouterr().out
    assert "16.6 GB do not fit into 16" in out.splitlines()[1] and " 0 robots can be promised" in out
    assert main(["plan", "pi05", "--device", "orin-nx-16", *fleet]) == 0
    assert capsys.readouterr().out.startswith("fits: ")
    assert main(["plan", "pi05", "--device", "orin-nx-16", *fleet, "--max-age", "0.1"]) == 1
    assert "ms old when it arrives" in capsys.readouterr().out.splitlines()[1]
    assert "an engine serves no robot" in fleet_line(0, 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pi9"], "pi9 is no model"),
        (["pi0", "--device", "gtx"], "no device 'gtx'"),
        (["pi0", "--device", "orin-agx-32:"], "has no power mode ''; it has maxn, 40w, 30w, 15w."),
        (["pi0", "--device", "h200:"], "has no power mode ''; it has none."),
        (["pi0", "--device", "a100", "--precision", "fp8"], "has no fp8_tflops"),
        (["pi0", "--views", "0"], "views is 0"),
        (["pi0", "--views", "4"], "views is 4; this pi0 has 3 cameras"),
        (["pi0", "--prompt", "49"], "prompt is 49; this pi0 takes 1 to 48 tokens"),
        (["pi0", "--slots", "0"], "slots is 0"),
        (["smolvla", "--precision", "int8"], "precision is int8, but smolvla has no stages in it"),
        (["openvla", "--precision", "w8a8-int4"], "but openvla has no stages in it"),
    ],
)
def test_what_there_is_not_is_refused_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
