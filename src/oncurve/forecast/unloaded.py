"""Facts of a run before it is loaded: the model's configuration, its parameters, and the lengths of its prompts.

A model is built from a configuration alone: small relatives with fewer layers and tokens, any weights. The cost of a
layer does not depend on its weights, so a rehearsal of two depths gives the cost of all layers.
"""

import copy
import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from oncurve.advantages import teacher_of
from oncurve.base.errors import ConfigError, ModelError, UserError
from oncurve.config import RunConfig
from oncurve.data import Demonstrations, Prompts, Rows, load_rows, open_demonstrations, open_prompts
from oncurve.forecast.shapes import USUAL_RANK, ModelShape
from oncurve.models import LoraSettings
from oncurve.models.adapters import count_factors
from oncurve.models.loading import (
    directory_of,
    eos_ids_of,
    explained,
    load_config,
    load_tokenizer,
    online,
    quiet,
    said_by,
    stored_adapter,
)

ASSUMED_PROMPT = 256
SAMPLED_PROMPTS = 256


def room_for_prompts(row: int | None, config: RunConfig) -> int | None:
    """Return the tokens a prompt may have, so that its completion fits rows of at most `row` tokens too; None: not
    known.

    Raises ConfigError where completions alone take it all.
    """
    longest = config.longest_completion
    if row is not None and longest >= row:
        raise ConfigError(
            f"{_longest_key(config)}: {longest} leaves no room for a prompt: the model takes rows of at most {row} "
            f"tokens, prompt and completion together; lower it, to {row // 2} for example"
        )
    return None if row is None else row - longest


def _longest_key(config: RunConfig) -> str:
    """Return the setting that the longest completions have their limit from."""
    section = "rollout" if config.longest_completion == config.rollout.max_new_tokens else "eval"
    return f"{section}.max_new_tokens"


def prompt_lengths(
    config: RunConfig, base: Path | None, said: int | None, known_data: bool, fits: int | None = None
) -> tuple[tuple[int, ...], list[str]]:
    """Return the number of tokens of each of a step's prompts, and notes about them.

    `said`: the length given for every prompt, whatever the data is. Else some rows, evenly spread, are tokenised: a
    step's prompts are their quantiles; where the data is not known a length is assumed. `fits`: the longest prompt that
    leaves room for a completion. Raises UserError: data or tokenizer are missing, a prompt is too long.
    """
    count = config.data.prompts_per_step
    if said is not None and fits is not None and said > fits:
        raise ConfigError(
            f"--prompt-tokens {said}: next to a completion there is room for {fits:,}; lower {_longest_key(config)} "
            f"by {said - fits:,}, or shorten the prompts"
        )
    if said is not None:
        return (said,) * count, []
    assumed = ASSUMED_PROMPT if fits is None else min(ASSUMED_PROMPT, fits)
    if not known_data:
        return (assumed,) * count, [f"prompts are taken to have {assumed} tokens (--prompt-tokens)"]
    try:
        rows = load_rows(config.data, base)
        tokenizer = stored_tokenizer(config)
    except UserError as error:
        raise type(error)(f"{error}\nWithout it, say how long prompts are: --prompt-tokens 256") from error
    if not len(rows):
        return (assumed,) * count, [f"no rows; prompts are taken to have {assumed} tokens"]
    prompts = open_prompts(_few(rows), config.data, tokenizer, fits)
    return _spread([len(prompts[index].ids) for index in range(len(prompts))], count), []


def demonstration_lengths(config: RunConfig, base: Path | None, row: int | None) -> tuple[tuple[int, ...], int]:
    """Return the number of tokens of each prompt of an update of a warm start, and those of the longest completion.

    Some demonstrations, evenly spread, are tokenised. Raises UserError: data or tokenizer are missing, a demonstration
    has more tokens than the `row` that the model takes.
    """
    found = config.sft.load(config.data, base)
    tokenizer = stored_tokenizer(config)
    prompts, whole = Prompts(_few(found.train), found.settings, tokenizer), found.whole or config.sft.train_on_prompts
    longest = min(filter(None, (row, config.sft.max_length)), default=None)
    drop = config.data.overlong == "drop"
    made = open_demonstrations(Demonstrations(prompts, eos_ids_of(None, tokenizer), whole), longest, drop)
    asked = [made[index] for index in range(len(made))]
    completions = [len(made.completion(prompt).ids) for prompt in asked]
    return _spread([len(prompt.ids) for prompt in asked], config.data.prompts_per_step), max(completions)


def stored_tokenizer(config: RunConfig) -> Any:
    """Return the policy's tokenizer, read without its weights. Raises ModelError: there is no such model."""
    source = config.model.source(weights=False)
    if not Path(source).expanduser().is_dir():  # which need not have weights
        directory_of(source)  # of a wrong path it says what is wrong
    return load_tokenizer(*_place(source), config.model.trust_remote_code)


def _few(rows: Rows) -> Rows:
    step = max(1, len(rows) // SAMPLED_PROMPTS)
    return rows.select(list(range(0, len(rows), step))[:SAMPLED_PROMPTS])


def _spread(lengths: list[int], count: int) -> tuple[int, ...]:
    """Return `count` quantiles of the lengths."""
    ranked = sorted(lengths)
    return tuple(ranked[(2 * place + 1) * len(ranked) // (2 * count)] for place in range(count))


def reward_model_bytes(config: RunConfig) -> float:
    """Return the bytes of a run's reward models: weights; masters, moments and gradient of one that iterations train.

    Counted from the headers of a folder's files; a hub id that is not downloaded counts as nothing.
    """
    width = {"float32": 4, "bfloat16": 2}
    networks = [reward.network for reward in config.rewards if reward.network is not None]
    held = sum(float(width[dtype] * _stored_parameters(path)) for path, dtype in networks)
    settings = config.own_reward_model
    if settings is not None:
        each = width[settings.dtype] if not config.iterative.steps else 16 if settings.dtype == "float32" else 18
        held += each * _stored_parameters(settings.path)
    return held


def teacher_bytes(config: RunConfig, dtype: str) -> float:
    """Return the bytes of the weights of a distillation's teacher, which are counted as those of reward models are."""
    teacher = teacher_of(config.advantage)
    path = "" if teacher is None else teacher.path or ""
    return float((4 if dtype == "float32" else 2) * _stored_parameters(path))


def _stored_parameters(path: str) -> int:
    count = 0
    for file in sorted(Path(path).expanduser().glob("*.safetensors")) if path else ():
        with suppress(Exception), safe_open(file, "pt") as tensors:  # what is wrong with it, loading will say
            count += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return count


def _place(path: str) -> tuple[str, bool]:
    """Return a model's folder or hub id as transformers takes it, and whether only what is here may be read."""
    folder = Path(path).expanduser()
    return (str(folder), True) if folder.is_dir() else (path, not online())


def read_model_config(path: str, trusted: bool = False) -> Any:
    """Return the configuration of a model in a folder, or of a hub id that is cached or can be reached; no weights.

    Raises ModelError where there is none.
    """
    folder = Path(path).expanduser()
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ModelError(f"{path} has no config.json: it is not a model in Hugging Face form")
    with explained(path, "configuration", None):
        return load_config(*_place(path), trusted)


_TILE = 1 << 16


def count_parameters(config: Any) -> int:
    """Return the parameters of the model of a transformers configuration, tied ones once; nothing is allocated.

    Raises ConfigError where transformers cannot make a model of it.
    """
    return sum(parameter.numel() for parameter in _unallocated(config).parameters())


def with_adapter(shape: ModelShape, lora: LoraSettings, model: Any = None) -> ModelShape:
    """Return `shape` with the parameters of the adapter of `lora`, counted in a model of the configuration `model`.

    Without a configuration they are those of all linear layers, of a stored adapter with the usual rank. Raises
    ModelError: the model lacks the layers that are named; there is no such adapter.
    """
    if not lora.adapted:
        return shape
    if model is None:
        return replace(shape, adapter=shape.low_rank(lora.rank or USUAL_RANK))
    if lora.path is not None:
        return replace(shape, adapter=sum(tensor.numel() for tensor in stored_adapter(lora.path).tensors.values()))
    return replace(shape, adapter=count_factors(_unallocated(model), lora))


def _unallocated(config: Any) -> nn.Module:
    """Return the model of a transformers configuration, without memory."""
    with torch.device("meta"):
        return _from_config(config)


def build_variant(config: Any, layers: int, vocabulary: int) -> nn.Module:
    """Return the model of `config` with this number of layers and tokens, in float32, with arbitrary small weights."""
    smaller = copy.deepcopy(config)
    text = smaller.get_text_config()
    text.num_hidden_layers, text.vocab_size = layers, vocabulary
    if getattr(text, "layer_types", None):
        text.layer_types = list(text.layer_types)[:layers]
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(text, key, None)
    module = _from_config(smaller)
    tile = torch.sin(torch.arange(_TILE) * 0.7) * 0.02
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                flat = parameter.view(-1)
                whole = flat.numel() // _TILE * _TILE
                flat[:whole].view(-1, _TILE).copy_(tile)
                flat[whole:].copy_(tile[: flat.numel() - whole])
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return module


def _from_config(config: Any) -> nn.Module:
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    try:
        with quiet(), no_init_weights():
            module: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if hasattr(module, "tie_weights"):
            module.tie_weights()  # skipped together with the initialisation
    except Exception as error:  # transformers' errors have no common base
        raise ConfigError(f"transformers makes no model of this configuration{said_by(error)}") from error
    result: nn.Module = module
    for name, parameter in result.named_parameters():
        if not parameter.numel():
            raise ConfigError(f"the model of this configuration has an empty weight: {name} {tuple(parameter.shape)}")
    return result
