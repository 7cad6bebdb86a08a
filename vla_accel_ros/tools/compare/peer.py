"""Computes chunks with public code: runs in the user's environment of it, without this package.

    PYTHON peer.py lerobot|openpi|transformers FOLDER

FOLDER holds request.json and request.npz; answer.npz or answer.json is written there. The observation and the
noise are this package's, everything else (files, tokenizer, images, normalisation, network) is the peer's.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = {"lerobot": ("lerobot", "transformers"), "openpi": ("openpi",), "transformers": ("transformers",)}
"""Packages that each peer needs, besides torch and numpy."""


def main() -> None:
    """Answer one request. A failure is an answer, too: {"missing": package} or {"failed": sentence}."""
    sys.path.pop(0)  # this file's folder, in which modules of this package lie
    name, folder = sys.argv[1], Path(sys.argv[2])
    for package in ("numpy", "torch", *NAMES[name]):
        try:
            importlib.import_module(package)
        except ImportError as error:
            _answer(folder, missing=error.name or package, failed=f"{package} cannot be imported ({error})")
            return
    import numpy as np
    import torch

    torch.set_grad_enabled(False)
    request = json.loads((folder / "request.json").read_text())
    with np.load(folder / "request.npz") as arrays:
        request |= {key: arrays[key] for key in arrays.files}
    notes: list[str] = []
    try:
        act = PEERS[name](request, notes)
        chunks = [act(index) for index in range(request["observations"])]
    except ImportError as error:
        _answer(folder, missing=error.name or "", failed=str(error))
    except Exception as error:  # foreign code may raise anything
        traceback.print_exc()
        _answer(folder, failed=f"{type(error).__name__}: {error}")
    else:
        np.savez(folder / "answer.npz", actions=np.stack(chunks).astype(np.float32))
        _answer(
            folder, versions={package: _version(package) for package in (*NAMES[name], "torch")}, notes=notes
        )


def _answer(folder: Path, **answer: Any) -> None:
    (folder / "answer.json").write_text(json.dumps(answer))


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of its sources"


def lerobot(request: dict[str, Any], notes: list[str]) -> Callable[[int], Any]:
    """lerobot's policy class and its two saved processors."""
    import numpy as np
    import torch
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    folder = request["folder"]
    config = PreTrainedConfig.from_pretrained(folder)
    settings = {"device": "cpu", "dtype": "float32", "compile_model": False}
    settings |= {"num_inference_steps": request["steps"], "num_steps": request["steps"]}
    for field, value in settings.items():
        if hasattr(config, field):
            setattr(config, field, value)
    policy = get_policy_class(config.type).from_pretrained(folder, config=config).float().eval()
    overrides: dict[str, Any] = {"device_processor": {"device": "cpu"}}
    try:
        preprocess, postprocess = make_pre_post_processors(config, folder, preprocessor_overrides=overrides)
    except Exception as error:  # without a network: the tokenizer that was copied into the folder
        if not (Path(folder) / "tokenizer.json").is_file():
            raise
        notes.append(f"the folder's tokenizer.json instead of the hub's, for {type(error).__name__}")
        overrides["tokenizer_processor"] = {
            "tokenizer": _tokenizer(Path(folder) / "tokenizer.json", config.type)
        }
        preprocess, postprocess = make_pre_post_processors(config, folder, preprocessor_overrides=overrides)

    keys = {key.removeprefix("observation.").removeprefix("images."): key for key in config.input_features}

    def act(index: int) -> Any:
        noise = torch.from_numpy(request["noise"][index])[None]
        policy.reset()
        policy.model.sample_noise = lambda shape, device: noise
        batch: dict[str, Any] = {}
        for number, name in enumerate(request["images"]):
            image = torch.from_numpy(request[f"image_{number}"][index])
            batch[keys[name]] = image.permute(2, 0, 1).float() / 255.0
        batch |= {
            "observation.state": torch.from_numpy(request["state"][index]),
            "task": request["instruction"],
        }
        return np.asarray(postprocess(policy.predict_action_chunk(preprocess(batch)))[0])

    return act


def _tokenizer(file: Path, kind: str) -> Any:
    """As the class that the hub names for it reads the file: PaliGemma's begins a prompt with <bos>."""
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_file(str(file))
    if kind == "smolvla":
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|im_end|>")
    begin = ("<bos>", tokenizer.token_to_id("<bos>"))
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[begin])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


def openpi(request: dict[str, Any], notes: list[str]) -> Callable[[int], Any]:
    """openpi's model and transforms, without those of a robot; relative actions by its own transform."""
    import numpy as np
    import openpi.models.model as models
    import openpi.shared.download as download
    import openpi.shared.normalize as normalize
    import openpi.transforms as transforms
    from openpi.models.pi0_config import Pi0Config
    from openpi.models.tokenizer import PaligemmaTokenizer
    from openpi.policies.policy import Policy

    folder, settings = Path(request["folder"]), request["training"]
    file = folder / "config.json"
    stored = json.loads(file.read_text()) if file.is_file() else {}
    variants = {
        name: stored[name] for name in ("paligemma_variant", "action_expert_variant") if name in stored
    }
    config = Pi0Config(
        dtype="float32",
        pi05=request["kind"] == "pi05",
        action_dim=request["noise"].shape[2],
        action_horizon=request["noise"].shape[1],
        discrete_state_input=settings["discrete_state_input"],
        pytorch_compile_mode=None,
        **variants,
    )
    weights = folder / "model.safetensors"
    if weights.is_file():
        import safetensors.torch
        from openpi.models_pytorch.pi0_pytorch import PI0Pytorch

        model = PI0Pytorch(config)
        safetensors.torch.load_model(model, weights)
        model = model.float()
    else:
        import jax.numpy as jnp

        model = config.load(models.restore_params(folder / "params", dtype=jnp.float32))
    files = [folder / name for name in ("paligemma_tokenizer.model", "tokenizer.model")]
    copied = next((file for file in files if file.is_file()), None)
    if copied is not None:
        notes.append(f"the folder's {copied.name} as PaliGemma's tokenizer")
        download.maybe_download = lambda url, **options: copied
    statistics = normalize.load(folder / "assets" / request["statistics"])
    quantiles = settings["use_quantile_norm"]
    state = {"discrete_state_input": config.discrete_state_input} if config.pi05 else {}
    mask = [count > 0 for count in settings["delta_action_mask"] for _ in range(abs(count))]
    policy = Policy(
        model,
        transforms=[
            transforms.Normalize(statistics, use_quantiles=quantiles),
            transforms.ResizeImages(224, 224),
            transforms.TokenizePrompt(PaligemmaTokenizer(config.max_token_len), **state),
            transforms.PadStatesAndActions(config.action_dim),
        ],
        output_transforms=[
            transforms.Unnormalize(statistics, use_quantiles=quantiles),
            *([transforms.AbsoluteActions(mask)] if mask else []),
        ],
        sample_kwargs={"num_steps": request["steps"]},
        is_pytorch=weights.is_file(),
    )

    def act(index: int) -> Any:
        images = {name: request[f"image_{number}"][index] for number, name in enumerate(request["images"])}
        observation = {
            "image": images,
            "image_mask": dict.fromkeys(images, np.True_),
            "state": request["state"][index],
            "prompt": request["instruction"],
        }
        actions = policy.infer(observation, noise=request["noise"][index])["actions"]
        return np.asarray(actions)[:, : request["actions"]]

    return act


def transformers(request: dict[str, Any], notes: list[str]) -> Callable[[int], Any]:
    """The folder's own code of OpenVLA, which transformers runs."""
    import numpy as np
    import torch
    import transformers as library
    from PIL import Image

    folder = request["folder"]
    kinds = ("AutoModelForVision2Seq", "AutoModelForImageTextToText")
    kind = next(getattr(library, name) for name in kinds if hasattr(library, name))
    processor = library.AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    model = kind.from_pretrained(folder, trust_remote_code=True, torch_dtype=torch.float32).eval()

    def act(index: int) -> Any:
        image = Image.fromarray(request["image_0"][index])
        prompt = f"In: What action should the robot take to {request['instruction'].lower()}?\nOut:"
        inputs = processor(prompt, image)
        actions = model.predict_action(**inputs, unnorm_key=request["statistics"] or None, do_sample=False)
        return np.asarray(actions).reshape(1, -1)

    return act


PEERS: dict[str, Callable[[dict[str, Any], list[str]], Callable[[int], Any]]] = {
    "lerobot": lerobot,
    "openpi": openpi,
    "transformers": transformers,
}

if __name__ == "__main__":
    main()
