"""Adapters on disk, in PEFT's form: adapter_config.json and adapter_model.safetensors.

in a file      base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight
in a module    model.layers.0.self_attn.q_proj.lora_A.default.weight
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from oncurve.base.errors import CheckpointError, ModelError, shown
from oncurve.durable import read_tensors
from oncurve.models.adapters.layer import NAME

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
FILES = (CONFIG, WEIGHTS)
_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"

_READ = {"r", "lora_alpha", "target_modules", "lora_dropout", "use_rslora", "rank_pattern", "alpha_pattern"}
_ABOUT = {"base_model_name_or_path", "inference_mode", "peft_type", "peft_version", "revision", "task_type"}
_WHERE = {"auto_mapping", "exclude_modules", "fan_in_fan_out", "layers_pattern", "layers_to_transform"}
_WITHOUT_EFFECT = _ABOUT | _WHERE | {"runtime_config"}
"""Keys of a LoRA configuration that change nothing of an adapter whose tensors are known."""
_INITIALISATIONS = (True, False, "gaussian", "orthogonal")
"""Those that leave the base's weights as they are."""


@dataclass(frozen=True)
class StoredAdapter:
    """A trained adapter as it was read.

    source    the folder, for messages
    config    PEFT's `LoraConfig`
    tensors   the factors, by the names of the parameters in a module
    """

    source: str
    config: Any
    tensors: Mapping[str, Tensor]

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The features that each adapted layer gives and takes, (O, H), by the layer's name."""
        end = f".lora_A.{NAME}.weight"
        paths = [name.removesuffix(end) for name in self.tensors if name.endswith(end)]
        factors = {path: (self.tensors[f"{path}.lora_B.{NAME}.weight"], self.tensors[path + end]) for path in paths}
        return {path: (int(b.shape[0]), int(a.shape[1])) for path, (b, a) in factors.items()}


def name_on_disk(name: str) -> str:
    """Return the name in a file of a parameter of a module."""
    return _PREFIX + name.replace(f".{NAME}.weight", ".weight")


def read_adapter(folder: Path, peft: Any, key: str = "lora.path") -> StoredAdapter:
    """Return the adapter in `folder`, the value of the setting `key`.

    Raises ModelError: no adapter, one of another kind than LoRA, or with a part that oncurve does not compute.
    """
    settings = read_config(folder, key)
    kind = settings.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder}: it is an adapter of type {shown(kind)}, and {key} takes LORA alone")
    _check_settings(settings, peft, folder)
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} has no {WEIGHTS}; save the adapter with PEFT's save_pretrained")
    try:
        found = read_tensors(folder / WEIGHTS)
    except CheckpointError as error:
        raise ModelError(str(error)) from error
    tensors: dict[str, Tensor] = {}
    for name, tensor in found.items():
        path = name.removeprefix(_PREFIX).removesuffix(_A).removesuffix(_B)
        end = name.removeprefix(_PREFIX + path)
        other = _PREFIX + path + (_B if end == _A else _A)
        if end not in (_A, _B) or other not in found or tensor.ndim != 2:
            raise ModelError(f"{folder}: its tensor {name} is no factor of a linear layer's LoRA product")
        tensors[path + end.replace(".weight", f".{NAME}.weight")] = tensor
    if not tensors:
        raise ModelError(f"{folder}: {WEIGHTS} has no tensors")
    known = {key: settings[key] for key in _READ & settings.keys()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = peft.LoraConfig(**known | {"lora_dropout": 0.0, "task_type": "CAUSAL_LM"})
    return StoredAdapter(str(folder), config, tensors)


def read_config(folder: Path, key: str) -> dict[str, Any]:
    """Return the configuration of the adapter in `folder`, the value of the setting `key`. Raises ModelError."""
    file = folder / CONFIG
    if not file.is_file():
        raise ModelError(f"{folder} has no {CONFIG}; {key} names a folder with an adapter in PEFT's form")
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{file}: expected a table of settings, got {type(settings).__name__}")
    return settings


def _check_settings(settings: Mapping[str, Any], peft: Any, folder: Path) -> None:
    """Raises ModelError for a setting by which the adapter computes something else than a low-rank product."""
    plain = peft.LoraConfig()
    names = {field.name for field in fields(plain)}
    for key, value in settings.items():
        if key in _READ | _WITHOUT_EFFECT or not value:
            continue
        if key == "init_lora_weights" and value in _INITIALISATIONS:
            continue
        if key not in names or value != getattr(plain, key):
            raise ModelError(
                f"{folder}: its {CONFIG} has {key} = {shown(value)}, which oncurve does not compute; it takes plain "
                "LoRA products of linear layers"
            )


def config_text(config: Any, base: str) -> bytes:
    """Return the text of an adapter_config.json of an adapter on the model `base`, a folder or a hub id; "" if not
    known.
    """
    where = str(Path(base).resolve()) if base and Path(base).is_dir() else base or None
    settings = config.to_dict() | {"base_model_name_or_path": where, "inference_mode": True}
    return (json.dumps(_plain(settings), indent=2, sort_keys=True) + "\n").encode()


def _plain(value: Any) -> Any:
    """Return the value with sets as sorted lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return sorted(value) if isinstance(value, set | frozenset) else value
