"""What a checkpoint says of real-time chunking by training: how many committed actions it may be given.

Any format of a flow policy may say it, in the same field of config.json (models/flow/committed.py), so that
what it means and how it is told are the same for all.
"""

from __future__ import annotations

from vla_accel_ros.models.checkpoints.description import Missing
from vla_accel_ros.models.checkpoints.formats import Contents
from vla_accel_ros.models.flow.committed import read_trained_delay


def trained_delay(contents: Contents, horizon: int) -> int:
    """See read_trained_delay; errors name the file."""
    try:
        return read_trained_delay(contents.config, horizon)
    except ValueError as error:
        raise ValueError(f"{contents.folder / 'config.json'}: {error}") from error


def delay_notes(contents: Contents, horizon: int, missing: Missing) -> list[str]:
    """A note for a Description if there is such a delay; a wrong one is missing."""
    delay = missing.read(trained_delay, contents, horizon, default=0)
    return [f"trained to be given up to {delay} committed actions (rtc_method: trained)"] if delay else []
