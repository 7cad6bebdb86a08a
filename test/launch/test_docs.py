"""What the documents link to is there, and what they tell the reader to type exists.

Links and anchors are those of the files; nothing is fetched. Commands of README.md and of some pages are run
(test_readme.py); those of all others are parsed here.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import stand_in
from readme_commands import ROOT, commands

from vla_accel_ros.nodes.running.environment import share_path
from vla_accel_ros.tools.cli import command_line

MADE = ROOT / "docs" / "reference" / "cli.md"
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "vla_accel_ros").rglob("*.md")})
WORDS = 45_000
"""Of all documents together."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of its headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(\s*([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}"
        assert not anchor or anchor in anchors(target), f"{name(page)} links to {link}: no such heading"


@pytest.mark.parametrize("page", [page for page in PAGES if page != MADE], ids=name)
def test_commands_can_be_typed(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.install(monkeypatch)
    parser, targets = (
        command_line(),
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE),
    )
    for command in commands(page, languages=("", "bash")):
        words = shlex.split(re.sub(r" [|>] .*", "", command))
        match words:
            case ["vla", *arguments]:
                parser.parse_args(arguments)
            case ["make", target, *_]:
                assert target in targets, command
            case ["python", script, *_] if script.endswith(".py"):
                assert (ROOT / script).is_file(), command
            case ["ros2", "launch", "vla_accel_ros", file, *arguments]:
                given = dict(argument.split(":=", 1) for argument in arguments if ":=" in argument)
                path = share_path(f"launch/{file}")
                if given.keys() & {"robot_ip", "driver"}:  # of others, whose packages are not here
                    assert given.keys() <= stand_in.declared(path).keys(), command
                else:
                    assert stand_in.start(path, **given)


def test_pages_are_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    listed = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#]+\.md)", index)}
    decisions = ROOT / "docs" / "decisions"
    missing = {page for page in (ROOT / "docs").rglob("*.md") if decisions not in page.parents} - listed
    assert {name(page) for page in missing} == {"docs/README.md"}


def test_documents_are_short() -> None:
    """As many as somebody reads."""
    counted = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert sum(len(page.read_text().split()) for page in counted) <= WORDS


def test_generated_pages_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
