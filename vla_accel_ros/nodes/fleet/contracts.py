"""A robot's contract as received: its text, and the text of the URDF that it names.

It comes from another machine, so no file of this machine is read: the URDF is the one that came with it.
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
"""Limit for the text of a contract or a URDF."""
_KEPT = 256


def contract_of(description: RobotDescription) -> Contract:
    """Read and check the contract. Raises ValueError, which names the robot, with all mistakes."""
    read = _read(description.robot, description.contract, description.urdf)
    if isinstance(read, str):
        raise ValueError(read)
    return read


@lru_cache(_KEPT)
def _read(robot: str, contract: str, urdf: str) -> Contract | str:
    """The contract, or why it is refused; cached, since a robot sends its description every second."""
    of = f"the contract of {robot}"
    if max(len(contract), len(urdf)) > MOST_LETTERS:
        return f"{of} or its URDF has more than {MOST_LETTERS} letters; shorten it"
    with tempfile.TemporaryDirectory(prefix="vla_accel_ros-fleet-") as folder:
        file = Path(folder) / "contract.yaml"
        try:
            (Path(folder) / "robot.urdf").write_text(urdf)
            file.write_text(_with_its_urdf(contract, urdf))
            return replace(Contract.load(file), urdf=None)
        except RecursionError:
            return f"{of} is nested too deeply; write it flat"
        except (ValueError, OSError, yaml.YAMLError) as error:
            why = str(error).replace(str(file), of).replace(folder, of)
            return why if of in why else f"{of}: {why}"


def _with_its_urdf(contract: str, urdf: str) -> str:
    fields = bounded_yaml.load(contract)
    if not isinstance(fields, dict) or "urdf" not in fields:
        return contract
    if not urdf:
        raise ValueError("it names a URDF; send its text beside it")
    return yaml.safe_dump({**fields, "urdf": "robot.urdf"}, sort_keys=False)
