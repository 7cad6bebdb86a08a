"""The `vla` command: what it says of wrong arguments, and how it ends."""

from __future__ import annotations

import pytest

from vla_accel_ros.tools import cli

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
