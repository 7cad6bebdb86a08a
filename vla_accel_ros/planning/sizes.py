"""The sizes of a model by a family's name, or from a checkpoint folder.

A folder of ours has its sizes in config.json, which is read here without torch; models.checkpoints describes
any other folder and needs torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vla_accel_ros.models.config import PI0, PI05, PiConfig
from vla_accel_ros.models.fastwam.config import FASTWAM
from vla_accel_ros.models.groot.config import GROOT_N1_5, GROOT_N1_7
from vla_accel_ros.models.json_file import read_json
from vla_accel_ros.models.mimic_video.config import KIND, MIMIC_VIDEO
from vla_accel_ros.models.openvla.config import OPENVLA_7B
from vla_accel_ros.models.openvla_oft.config import OPENVLA_OFT_ALOHA, OPENVLA_OFT_LIBERO
from vla_accel_ros.models.pi_fast.config import PI0_FAST
from vla_accel_ros.models.smolvla.config import SMOLVLA
from vla_accel_ros.models.xvla.config import XVLA
from vla_accel_ros.planning.work import Sizes

MODELS: dict[str, Sizes] = {
    "pi0": PI0,
    "pi05": PI05,
    "pi0_fast": PI0_FAST,
    "openvla": OPENVLA_7B,
    "smolvla": SMOLVLA,
    "groot_n1_7": GROOT_N1_7,
    "groot_n1_5": GROOT_N1_5,
    "xvla": XVLA,
    KIND: MIMIC_VIDEO,
    "openvla_oft": OPENVLA_OFT_LIBERO,
    "fastwam": FASTWAM,
    "openvla_oft_aloha": OPENVLA_OFT_ALOHA,
}
"""The published sizes of each family."""
_KINDS: dict[str, type[Sizes]] = {sizes.kind: type(sizes) for sizes in MODELS.values()}
KEY = "vla_accel_ros"


def sizes_of(model: str | Path, trained_as: str = "") -> Sizes:
    """Return the sizes of a name in MODELS or of a folder. trained_as: as in load_policy. Raises ValueError,
    with one sentence, if it is neither, or if nobody says its horizon."""
    if str(model) in MODELS:
        return MODELS[str(model)]
    file = Path(model) / "config.json"
    if not Path(model).is_dir():
        raise ValueError(
            f"{model} is no model: give one of {', '.join(MODELS)}, or the folder of a checkpoint."
        )
    data = read_json(file).get(KEY) if file.is_file() else None
    if isinstance(data, dict):
        sizes = data.get("config", data)
        kind = str(sizes.get("kind")) if isinstance(sizes, dict) else ""
        try:
            return _KINDS.get(kind, PiConfig).from_json(sizes)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file}, field {KEY}: {error}") from error
    from vla_accel_ros.models.checkpoints.checkpoint import describe
    from vla_accel_ros.models.pi.training import HORIZON, ask

    description = describe(model, trained_as=trained_as)
    if HORIZON in description.unknown:
        raise ask(Path(model), (HORIZON,))
    config: Any = description.config
    return config
