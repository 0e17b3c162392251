"""Models and tokenizers in Hugging Face form: from a directory or a hub id.

A directory is read without touching the network. Weights are safetensors, never pickle; code from a repository
runs only where `trust_remote_code` says so. What is missing is refused with the mend, not filled with random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from oncurve.errors import ModelError
from oncurve.models.causal import CausalModel
from oncurve.models.hub import answers, offline, reachable
from oncurve.models.precision import DTYPES, Precision, resolved
from oncurve.models.probe import wrap
from oncurve.models.quiet import quiet
from oncurve.models.sources import directory_of, explained, load_config, load_tokenizer, stored_in_bfloat16
from oncurve.spec import Component

__all__ = ["LoadedModel", "ModelConfig", "loaded_from"]


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for use.

    eos_ids         every token that ends a completion: of the generation config, the config and the tokenizer
    dtype           what it is to compute in; a learner makes bf16 copies of float32 parameters itself
    dtype_reason    why it is this `dtype`
    """

    model: CausalModel
    tokenizer: Any
    eos_ids: tuple[int, ...]
    name: str
    dtype: torch.dtype
    dtype_reason: str = "as it was given"

    @property
    def vocabulary(self) -> int | None:
        """See `vocabulary_of`."""
        return vocabulary_of(self.model.module)


def vocabulary_of(module: Any) -> int | None:
    """How many tokens `module` can be given, by its embedding; None: not known."""
    found = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else None
    tables = [found] if isinstance(found, nn.Embedding) else module.modules()
    return max((table.num_embeddings for table in tables if isinstance(table, nn.Embedding)), default=None)


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
        directory = directory_of(self.path)
        source = str(directory or self.path)
        device = self._device()
        local = directory is not None or not (
            reachable() and answers()
        )  # what was downloaded once loads without the hub
        module, missing = self._load_module(source, local, masters)
        if missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise ModelError(
                f"{source}: the weights lack {shown}; a model with random parts cannot be trained on purpose"
            )
        tokenizer = load_tokenizer(source, local, self.trust_remote_code)
        with quiet():
            model = wrap(module.to(device), self.attention)
        name = directory.name if directory is not None else self.path
        name_of_dtype, why = self.precision()
        eos_ids = eos_ids_of(module, tokenizer)
        return LoadedModel(model, tokenizer, eos_ids, name, DTYPES[name_of_dtype], why)

    def _device(self) -> torch.device:
        available = torch.cuda.is_available()
        if self.device == "cuda" and not available:
            raise ModelError('model.device = "cuda", but torch sees no CUDA device; use "auto" or "cpu"')
        return torch.device("cuda" if available and self.device != "cpu" else "cpu")

    def _load_module(self, source: str, local: bool, masters: bool) -> tuple[Any, list[str]]:
        with quiet(), explained(source, "model"), offline(local):
            from transformers import AutoModelForCausalLM

            config = load_config(source, local, self.trust_remote_code)
            as_stored = not masters or stored_in_bfloat16(source, local, self.trust_remote_code)
            module, loading = AutoModelForCausalLM.from_pretrained(
                source,
                config=config,
                dtype=self.torch_dtype if as_stored else torch.float32,
                use_safetensors=True,
                local_files_only=local,
                trust_remote_code=self.trust_remote_code,
                output_loading_info=True,
            )
        return module, sorted(str(key) for key in (*loading["missing_keys"], *loading["mismatched_keys"]))


def loaded_from(module: nn.Module, tokenizer: Any = None) -> LoadedModel:
    """A module that is in memory already, as `ModelConfig.build` would give it: its path chosen, its EOS ids found.

    Any module with `forward(input_ids) -> logits` will do; `tokenizer` may be None where prompts are token ids.
    """
    model = wrap(module)
    dtype = next((parameter.dtype for parameter in module.parameters()), torch.float32)
    return LoadedModel(model, tokenizer, eos_ids_of(module, tokenizer), type(module).__name__, dtype)


def eos_ids_of(module: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a completion, of the generation config, the config and the tokenizer, where they are there.

    A set, because a chat model ends its turns with another token than its texts.
    """
    found: list[int] = []
    for holder in (getattr(module, "generation_config", None), getattr(module, "config", None), tokenizer):
        given = getattr(holder, "eos_token_id", None)
        found += [given] if isinstance(given, int) else list(given or ())
    return tuple(dict.fromkeys(found))
