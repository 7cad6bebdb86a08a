"""The contract of a recorded session, as it was loaded then."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml

from vla_accel_ros.contract import bounded_yaml
from vla_accel_ros.contract.contract import Contract
from vla_accel_ros.engine.session import Session


def contract_of(session: Session) -> Contract:
    """Load it from the session's texts. Raises ValueError for one that this version refuses."""
    with tempfile.TemporaryDirectory() as folder:
        return Contract.load(contract_file(session, Path(folder)))


def contract_file(session: Session, folder: Path) -> Path:
    """The session's contract as a file, beside its URDF."""
    file = folder / "contract.yaml"
    file.write_text(session.contract)
    if session.urdf:
        (folder / "robot.urdf").write_text(session.urdf)
        try:
            document = bounded_yaml.load(session.contract)
        except (yaml.YAMLError, RecursionError):
            return file  # who loads it says what is wrong
        if isinstance(document, dict):
            file.write_text(yaml.safe_dump({**document, "urdf": "robot.urdf"}, sort_keys=False))
    return file
