"""Models and tokenizers in Hugging Face form: from a directory or a hub id.

A directory is read without touching the network. Weights are safetensors, never pickle; code from a repository runs
only with `trust_remote_code`. A missing part is an error with a suggestion, and is never filled with random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from oncurve.base.errors import ModelError
from oncurve.components import Component, Impossible
from oncurve.models.adapters.inject import import_peft, put_adapter
from oncurve.models.adapters.settings import LoraSettings
from oncurve.models.causal import CausalModel
from oncurve.models.loading.checks import (
    directory_of,
    explained,
    load_config,
    load_module,
    load_tokenizer,
    revised,
    stored_adapter,
    stored_in_bfloat16,
)
from oncurve.models.loading.hub import offline, online, quiet
from oncurve.models.loading.precision import DTYPES, Precision, Quantization, device_of, quantization_config, resolved
from oncurve.models.probe import wrap

NO_ADAPTER = LoraSettings()


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
    """Return how many tokens `module` can be given, by its embedding; None: not known."""
    found = module.get_input_embeddings() if hasattr(module, "get_input_embeddings") else None
    tables = [found] if isinstance(found, nn.Embedding) else module.modules()
    return max((table.num_embeddings for table in tables if isinstance(table, nn.Embedding)), default=None)


class ModelConfig(Component):
    """The policy's initial model, and how it computes."""

    path: str = ""
    """A directory in Hugging Face form, or a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`."""

    revision: str | None = Field(default=None, min_length=1)
    """Of a hub id: the branch, tag or commit; none: the main branch."""

    dtype: Precision = "auto"
    """What the model computes in: "bfloat16" is faster where the hardware multiplies it (the learner keeps float32
    master weights), "float32" is the exact mode; "auto": bfloat16 where the processor or GPU has it, else float32. The
    run's resolved file holds the choice."""

    attention: Literal["auto", "generic"] = "auto"
    """How the model is run. "auto": the fast path where the load-time probe allows it; "generic": the plain forward
    pass."""

    trust_remote_code: bool = False
    """Run code that comes with the model."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it runs; "auto": cuda where there is one."""

    quantization: Quantization | None = None
    """How the frozen weights under an adapter are stored: "nf4" with 4 bits per weight (QLoRA), on a CUDA device; none:
    in `dtype`."""

    impossible: ClassVar[tuple[Impossible, ...]] = (
        Impossible(
            lambda model: model.revision is not None and Path(model.path).expanduser().is_dir(),
            "model.revision: model.path is a folder, which has one version; leave model.revision out",
        ),
        Impossible(
            lambda model: model.quantization is not None and model.device == "cpu",
            "model.quantization: on a CPU every product would unpack its weights again, slower than bfloat16; leave it "
            'out, or set model.device to "cuda"',
        ),
    )

    def source(self, weights: bool = True) -> str:
        """Return what the model is loaded from: `path`, or the folder of the downloaded files of a `revision`.

        `weights` False: configuration and tokenizer alone are fetched. Raises ModelError: there is no such revision.
        """
        return self.path if self.revision is None else str(revised(self.path, self.revision, weights))

    @property
    def torch_device(self) -> torch.device:
        """`device` on this machine. Raises ModelError: no such device."""
        return device_of(self.device, "model")

    @property
    def torch_dtype(self) -> torch.dtype:
        """`dtype` on this machine, as torch's dtype."""
        return DTYPES[self.precision()[0]]

    def precision(self) -> tuple[Literal["float32", "bfloat16"], str]:
        """Return `dtype` on this machine, and the reason for it. Raises ModelError: no such device."""
        return resolved(self.dtype, self.torch_device)

    def precision_here(self) -> tuple[Literal["float32", "bfloat16"], str] | None:
        """Return `precision`, or None where the device that `device` asks for is not on this machine."""
        return None if self.device == "cuda" and not torch.cuda.is_available() else self.precision()

    def on_this_machine(self) -> ModelConfig:
        """Return the same with `dtype` by name, so that it stays what it is wherever the run goes on."""
        return self.model_copy(update={"dtype": self.precision()[0]})

    def build(self, masters: bool = False, lora: LoraSettings = NO_ADAPTER, seed: int = 0) -> LoadedModel:
        """Load the model, its tokenizer, and choose its path.

        With `masters` the parameters come without loss whatever `dtype` is: for a learner, which steps in
        float32 and makes the `dtype` copies itself. That is in float32, but for weights that are stored in bfloat16 and
        compute in it, which stay as they are. Without, they come in `dtype`: for evaluation. With an adapter (`lora`)
        the weights are never stepped and come in `dtype`; a new adapter is drawn by `seed`.

        Raises:
            ModelError: no such directory; no weights, only pickled ones, or not all of them; no tokenizer; a hub id
                that cannot be fetched; code that is not trusted; no CUDA device; an adapter that the model cannot have.
        """
        directory = directory_of(self.source())
        source = str(directory or self.path)
        device = self.torch_device
        kind = self.quantization
        quantized = None if kind is None else quantization_config(kind, self.torch_dtype, device)
        if lora.adapted:
            import_peft()
        stored = None if lora.path is None else stored_adapter(lora.path)
        local = directory is not None or not online()  # what was downloaded once loads without the hub
        module, missing = self._load_module(source, local, masters and not lora.adapted, quantized)
        if missing:
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            raise ModelError(
                f"{source}: the weights lack {shown}; a model with random parts cannot be trained on purpose"
            )
        tokenizer = load_tokenizer(source, local, self.trust_remote_code)
        module = module.to(device) if quantized is None else module
        with quiet():
            adapter = put_adapter(module, lora, seed, stored) if lora.adapted else None
            model = wrap(module, self.attention, adapter)
        name = directory.name if directory is not None and self.revision is None else self.path
        name_of_dtype, why = self.precision()
        return LoadedModel(model, tokenizer, eos_ids_of(module, tokenizer), name, DTYPES[name_of_dtype], why)

    def _load_module(self, source: str, local: bool, masters: bool, quantized: Any) -> tuple[Any, list[str]]:
        with quiet(), explained(source, "model"), offline(local):
            from transformers import AutoModelForCausalLM

            config = load_config(source, local, self.trust_remote_code)
            as_stored = not masters or stored_in_bfloat16(source, local, self.trust_remote_code)
            dtype = self.torch_dtype if as_stored else torch.float32
            options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
            if quantized is not None:
                options |= {"quantization_config": quantized, "device_map": {"": "cuda"}}
            return load_module(AutoModelForCausalLM, source, config, dtype, local, **options)


def loaded_from(module: nn.Module, tokenizer: Any = None) -> LoadedModel:
    """Return a module that is in memory already, as `ModelConfig.build` would give it: its path chosen, its EOS ids
    found.

    Any module with `forward(input_ids) -> logits` will do; `tokenizer` may be None where prompts are token ids.
    """
    model = wrap(module)
    dtype = next((parameter.dtype for parameter in module.parameters()), torch.float32)
    return LoadedModel(model, tokenizer, eos_ids_of(module, tokenizer), type(module).__name__, dtype)


def adapted(loaded: LoadedModel, lora: LoraSettings, seed: int = 0) -> LoadedModel:
    """Return `loaded` with the adapter of `lora` in its module, where it has none yet; its path is chosen again.

    Raises ModelError: it has an adapter, or lacks the layers that are named.
    """
    if not lora.adapted:
        return loaded
    stored = None if lora.path is None else stored_adapter(lora.path)
    module = loaded.model.module
    return replace(loaded, model=wrap(module, adapter=put_adapter(module, lora, seed, stored)))


def eos_ids_of(module: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return every token that ends a completion, of the generation config, the config and the tokenizer, where they are
    there.

    A set, because a chat model ends its turns with another token than its texts.
    """
    found: list[int] = []
    for holder in (getattr(module, "generation_config", None), getattr(module, "config", None), tokenizer):
        given = getattr(holder, "eos_token_id", None)
        found += [given] if isinstance(given, int) else list(given or ())
    return tuple(dict.fromkeys(found))
