"""A robot's contract as it travelled: a text, and the text of the URDF that it names.

It is another machine's, so no file of this one is read: the URDF it names is the one it brought.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import yaml

from vla_accel_ros.contract import bounded_yaml
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.fleet.protocol import RobotDescription

MOST_LETTERS = 1 << 20
"""Of a contract or a URDF."""
_KEPT = 256


@lru_cache(_KEPT)
def contract_of(description: RobotDescription) -> Contract:
    """Read and check it. Raises ValueError, which names the robot, with all mistakes."""
    of = f"the contract of {description.robot}"
    if max(len(description.contract), len(description.urdf)) > MOST_LETTERS:
        raise ValueError(f"{of} or its URDF has more than {MOST_LETTERS} letters; shorten it")
    with tempfile.TemporaryDirectory(prefix="vla_accel_ros-fleet-") as folder:
        file = Path(folder) / "contract.yaml"
        (Path(folder) / "robot.urdf").write_text(description.urdf)
        try:
            file.write_text(_with_its_urdf(description))
            return replace(Contract.load(file), urdf=None)
        except (ValueError, OSError, yaml.YAMLError) as error:
            raise ValueError(str(error).replace(str(file), of).replace(folder, of)) from None


def _with_its_urdf(description: RobotDescription) -> str:
    fields = bounded_yaml.load(description.contract)
    if not isinstance(fields, dict) or "urdf" not in fields:
        return description.contract
    if not description.urdf:
        raise ValueError(f"the contract of {description.robot} names a URDF; send its text beside it")
    return yaml.safe_dump({**fields, "urdf": "robot.urdf"}, sort_keys=False)
