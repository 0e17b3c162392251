"""Models and tokenizers in Hugging Face form: from a directory or a hub id.

A directory is read without touching the network. Weights are safetensors, never pickle; code from a repository
runs only where `trust_remote_code` says so. What is missing is refused with the mend, not filled with random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from oncurve.errors import ModelError
from oncurve.models.causal import CausalModel
from oncurve.models.hub import reachable
from oncurve.models.precision import DTYPES, Precision, resolved
from oncurve.models.probe import wrap
from oncurve.models.quiet import quiet
from oncurve.spec import Component

__all__ = ["LoadedModel", "ModelConfig", "loaded_from"]

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for use.

    eos_ids         every token that ends a completion: of the generation config, the config and the tokenizer
    dtype           what it is to compute in; a learner makes bf16 copies of float32 parameters itself
    context_length  the positions the model was made for, prompt and completion together; None: not stated
    dtype_reason    why it is this `dtype`
    """

    model: CausalModel
    tokenizer: Any
    eos_ids: tuple[int, ...]
    name: str
    dtype: torch.dtype
    context_length: int | None
    dtype_reason: str = "as it was given"


class ModelConfig(Component):
    """The section `[model]`.

    path               a directory in Hugging Face form, or a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`
    dtype              what the model computes in: "bfloat16" is the faster where the hardware multiplies
                       it (the learner keeps float32 masters), "float32" is the exact mode; "auto": bfloat16 where the
                       processor or GPU has it, else float32. A run's resolved file holds what it became
    attention          "auto": the fast path where the load-time probe allows it; "generic": the plain forward
    trust_remote_code  run code that comes with the model
    device             "auto": cuda where there is one
    """

    path: str = ""
    dtype: Precision = "auto"
    attention: Literal["auto", "generic"] = "auto"
    trust_remote_code: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @property
    def torch_dtype(self) -> torch.dtype:
        """What `dtype` is on this machine, as torch knows it."""
        return DTYPES[self.precision()[0]]

    def precision(self) -> tuple[Literal["float32", "bfloat16"], str]:
        """What `dtype` is on this machine, and why. Raises ModelError: no such device."""
        return resolved(self.dtype, self._device())

    def precision_here(self) -> tuple[Literal["float32", "bfloat16"], str] | None:
        """`precision`, or None where the device that `device` asks for is not on this machine."""
        return None if self.device == "cuda" and not torch.cuda.is_available() else self.precision()

    def on_this_machine(self) -> ModelConfig:
        """The same with `dtype` by name, so that it stays what it is wherever the run goes on."""
        return self.model_copy(update={"dtype": self.precision()[0]})

    def build(self, masters: bool = False) -> LoadedModel:
        """Load the model, its tokenizer, and choose its path.

        With `masters` the parameters come without loss whatever `dtype` is: for a learner, which steps in
        float32 and makes the `dtype` copies itself. That is in float32, but for weights that are stored in bfloat16 and
        compute in it, which stay as they are. Without, they come in `dtype`: for evaluation.

        Raises:
            ModelError: no such directory; no weights, only pickled ones, or not all of them; no tokenizer; a hub id
                that cannot be fetched; code that is not trusted; no CUDA device.
        """
        directory = _directory(self.path)
        source = str(directory or self.path)
        device = self._device()
        local = directory is not None or not reachable()  # what was downloaded once loads without the hub
        module, missing = self._load_module(source, local, masters)
        if missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise ModelError(
                f"{source}: the weights lack {shown}; a model with random parts cannot be trained on purpose"
            )
        tokenizer = self._load_tokenizer(source, local)
        with quiet():
            model = wrap(module.to(device), self.attention)
        context: int | None = getattr(module.config.get_text_config(), "max_position_embeddings", None)
        name = directory.name if directory is not None else self.path
        name_of_dtype, why = self.precision()
        eos_ids = eos_ids_of(module, tokenizer)
        return LoadedModel(model, tokenizer, eos_ids, name, DTYPES[name_of_dtype], context, why)

    def _device(self) -> torch.device:
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise ModelError('model.device = "cuda", but torch sees no CUDA device; use "auto" or "cpu"')
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")

    def _load_module(self, source: str, local: bool, masters: bool) -> tuple[Any, list[str]]:
        with quiet(), _explained(source, "model"):
            from transformers import AutoModelForCausalLM

            as_stored = not masters or stored_in_bfloat16(source, local, self.trust_remote_code)
            module, loading = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=self.torch_dtype if as_stored else torch.float32,
                use_safetensors=True,
                local_files_only=local,
                trust_remote_code=self.trust_remote_code,
                output_loading_info=True,
            )
        return module, sorted(str(key) for key in (*loading["missing_keys"], *loading["mismatched_keys"]))

    def _load_tokenizer(self, source: str, local: bool) -> Any:
        with quiet(), _explained(source, "tokenizer"):
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(
                source, local_files_only=local, trust_remote_code=self.trust_remote_code
            )


def loaded_from(module: nn.Module, tokenizer: Any = None) -> LoadedModel:
    """A module that is in memory already, as `ModelConfig.build` would give it: its path chosen, its EOS ids found.

    Any module with `forward(input_ids) -> logits` will do; `tokenizer` may be None where prompts are token ids.
    """
    model = wrap(module)
    config: Any = getattr(module, "config", None)
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    context: int | None = getattr(text_config, "max_position_embeddings", None)
    dtype = next((parameter.dtype for parameter in module.parameters()), torch.float32)
    return LoadedModel(model, tokenizer, eos_ids_of(module, tokenizer), type(module).__name__, dtype, context)


def _directory(path: str) -> Path | None:
    """The directory that `path` means, checked; None where it means a hub id.

    Raises:
        ModelError: no path, a path to nothing, or a directory that holds no model oncurve can load.
    """
    if not path:
        raise ModelError("model.path is not set: name a directory in Hugging Face form, or a hub id")
    folder = Path(path).expanduser()
    if folder.is_dir():
        _check_directory(folder)
        return folder
    if folder.exists():
        raise ModelError(f"{path} is a file; model.path names a directory in Hugging Face form, or a hub id")
    if path[0] in "./~" or path.count("/") > 1:
        raise ModelError(f"{path}: no such directory")
    return None


def _check_directory(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: it is not a model in Hugging Face form")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
        if pickled:
            raise ModelError(
                f"{folder} has only pickled weights ({pickled[0]}), which run code when they are loaded; oncurve never "
                "loads them. Convert them where you trust them: transformers' save_pretrained writes safetensors"
            )
        raise ModelError(f"{folder} has no weights (*.safetensors)")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{folder} has no tokenizer (tokenizer.json and its like); copy its files beside the weights")


def stored_in_bfloat16(source: str, local: bool, trust_remote_code: bool) -> bool:
    """Whether every floating weight of a model is stored in bfloat16, so that float32 would hold nothing more.

    Of a directory its files say so; of a hub id its configuration, which was written with them.
    """
    files = sorted(Path(source).glob("*.safetensors"))
    if not files:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=trust_remote_code)
        return getattr(config, "dtype", None) == torch.bfloat16
    from safetensors import safe_open

    found: set[str] = set()
    for path in files:
        with safe_open(path, "pt") as file:
            found.update(file.get_slice(name).get_dtype() for name in file.keys())  # noqa: SIM118  (no mapping)
    return {name for name in found if name[0] in "FB" and name != "BOOL"} == {"BF16"}


def eos_ids_of(module: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a completion, of the generation config, the config and the tokenizer, where they are there.

    A set, because a chat model ends its turns with another token than its texts.
    """
    found: list[int] = []
    for holder in (getattr(module, "generation_config", None), getattr(module, "config", None), tokenizer):
        given = getattr(holder, "eos_token_id", None)
        found += [given] if isinstance(given, int) else list(given or ())
    return tuple(dict.fromkeys(found))


@contextmanager
def _explained(source: str, what: str) -> Iterator[None]:
    """What transformers raises, as a `ModelError` that says what to do."""
    try:
        yield
    except ImportError as error:
        raise ModelError(f"{source}: the {what} needs a package that is not installed: {_first(error)}") from error
    except Exception as error:  # transformers, huggingface_hub and safetensors have no common base
        text = str(error)
        if "trust_remote_code" in text:
            raise ModelError(
                f"{source}: its {what} comes with code of its own; set model.trust_remote_code = true if you trust it"
            ) from error
        if isinstance(error, OSError) and not Path(source).is_dir():
            raise ModelError(
                f"{source} is neither a directory here nor a {what} the hub could give: {_first(error)} "
                "(a hub id needs the network, or an earlier download; a private one needs `hf auth login`)"
            ) from error
        raise ModelError(f"{source}: the {what} cannot be loaded: {_first(error)}") from error


def _first(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
