"""The simulated arm's contract with its cameras in shared memory.

The demo itself goes on watching the image topics, which the robot also has: only the nodes under test read
the rings. The contract is written beside the results, so that what ran can be read afterwards.
"""

from __future__ import annotations

from pathlib import Path

import yaml


def contract_of(contract: Path, file: Path) -> Path:
    """Write to `file` the same contract with every camera as a ring, `camera/<name>/frame`; returns it."""
    data = yaml.safe_load(contract.read_text())
    for name, camera in data["cameras"].items():
        camera |= {"topic": f"camera/{name}/frame", "transport": "ring"}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file
