"""Classifiers from a directory or a hub id, and back: a trained reward model, or a new head on a language model.

A missing part of a reward model is an error. For training, the files may also hold a causal language model; its
backbone gets a head of zeros, so that all rewards begin at 0. With a low-rank adapter the backbone is frozen, and the
adapter and the head are trained.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from oncurve.base.errors import ModelError
from oncurve.durable import LazyTensors
from oncurve.models.adapters.inject import put_adapter
from oncurve.models.adapters.settings import LoraSettings
from oncurve.models.classifiers.classifier import Classifier, HeadKind
from oncurve.models.layers.alignment import aligned
from oncurve.models.layers.lengths import positions_of
from oncurve.models.layers.rotation import hold_rotations
from oncurve.models.loading.checks import directory_of, explained, load_config, load_module, load_tokenizer
from oncurve.models.loading.hub import offline, online, quiet
from oncurve.models.loading.precision import DTYPES, device_of
from oncurve.models.loading.saving import save

ARCHITECTURES: dict[HeadKind, str] = {"outcome": "ForSequenceClassification", "process": "ForTokenClassification"}
NAMES: dict[HeadKind, str] = {"outcome": "a sequence classifier", "process": "a token classifier"}
PLURALS: dict[HeadKind, str] = {"outcome": "outcomes", "process": "steps"}
"""The texts that a model of each kind scores."""
STEP_LABELS = {0: "wrong", 1: "right"}
"""The two labels of a new process reward model, in TRL's and PRM800K's order."""


def load_classifier(
    path: str,
    head: HeadKind,
    *,
    label: str | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    max_length: int | None = None,
    new_head: bool = False,
    section: str = "reward_model",
) -> Classifier:
    """Load a classifier and its tokenizer.

    Args:
        path: a directory in Hugging Face form, or a hub id.
        label: the label whose log-odds are the score, by name or number; None: there is one logit, or two of a process
            model, the second of which means "right".
        max_length: the longest text to read, in tokens; None: the model's own limit.
        new_head: also accept a causal language model, which gets a head of zeros.
        section: where in the configuration `path` stands, for messages.

    Raises ModelError: no such model, the wrong kind of it, no such label, a tokenizer that cannot be used.
    """
    directory = directory_of(path, f"{section}.path")
    source, local = str(directory or path), directory is not None or not online()
    chosen = device_of(device, section)
    module = _load(source, local, head, DTYPES[dtype], new_head)
    tokenizer = load_tokenizer(source, local)
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(
            f"{source}: its tokenizer does not give the positions of tokens in a text; convert it to a fast one"
        )
    text_config = module.config.get_text_config()
    pad_id = next(
        (i for i in (tokenizer.pad_token_id, text_config.pad_token_id, tokenizer.eos_token_id) if i is not None), None
    )
    if pad_id is None:
        raise ModelError(f"{source}: the tokenizer has neither a padding nor an end token, so texts cannot be batched")
    text_config.pad_token_id = module.config.pad_token_id = int(pad_id)
    context = positions_of(module)
    hold_rotations(module, context)
    longest = min((n for n in (context, max_length) if n is not None), default=None)
    name = directory.name if directory is not None else path
    module.eval()
    return Classifier(
        module.to(chosen), tokenizer, head, _label(module, head, label, source, section), pad_id, longest, name
    )


def _load(source: str, local: bool, head: HeadKind, dtype: torch.dtype, new_head: bool) -> Any:
    with quiet(), explained(source, "model", None):
        from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

        config = load_config(source, local)
    found = str(next(iter(getattr(config, "architectures", None) or ()), "of no known architecture"))
    is_it = found.endswith(ARCHITECTURES[head])
    if not is_it:
        _check_new_head(source, found, head, new_head)
        config.num_labels = 1 if head == "outcome" else len(STEP_LABELS)
        if head == "process":
            config.id2label = dict(STEP_LABELS)
            config.label2id = {name: number for number, name in STEP_LABELS.items()}
    loader = AutoModelForSequenceClassification if head == "outcome" else AutoModelForTokenClassification
    with quiet(), explained(source, "model", None), offline(local):
        module, missing = load_module(loader, source, config, dtype, local)
    lacking = [name for name in missing if is_it or name.startswith(f"{module.base_model_prefix}.")]
    if lacking:
        raise ModelError(f"{source}: the weights lack {lacking[0]}; a reward model with random parts cannot score")
    for name in missing:
        nn.init.zeros_(module.get_parameter(name))
    return aligned(module)


def _check_new_head(source: str, found: str, head: HeadKind, new_head: bool) -> None:
    for kind, ending in ARCHITECTURES.items():
        if found.endswith(ending):
            raise ModelError(
                f"{source} ({found}) is {NAMES[kind]}: a reward model of {PLURALS[kind]}, and not of {PLURALS[head]}"
            )
    if not new_head:
        fix = "train one with: oncurve reward-model train"
        raise ModelError(f"{source} ({found}) is not {NAMES[head]}, so it is no reward model; {fix}")


def _label(module: Any, head: HeadKind, label: str | None, source: str, section: str) -> int | None:
    count = int(module.config.num_labels)
    names = {int(number): str(name) for number, name in (module.config.id2label or {}).items()}
    known = {name.casefold(): number for number, name in names.items()} | {str(n): n for n in range(count)}
    if count == 1 and (label is None or label.casefold() in known):
        return None
    if label is None and head == "process" and count == len(STEP_LABELS):
        return 1
    if label is not None and label.casefold() in known:
        return known[label.casefold()]
    listed = ", ".join(f"{number} ({names.get(number, 'unnamed')})" for number in range(count))
    wrong = f"has no label {label!r}" if label is not None else f"has {count} labels, and none is chosen as the reward"
    fix = f"set {section}.label to one of: {listed}" if section == "rewards" else "one with a single logit is needed"
    raise ModelError(f"{source} {wrong}; {fix}")


def with_adapter(classifier: Classifier, lora: LoraSettings, seed: int) -> Classifier:
    """Return `classifier` with the adapter of `lora` in its backbone, in place; without one it stays as it is.

    Raises ModelError: the backbone lacks the layers that are named; `lora.path`, which is for policies.
    """
    if not lora.adapted:
        return classifier
    if lora.path is not None:
        raise ModelError("lora.path: a reward model begins with a new adapter; set lora.rank, and leave lora.path out")
    return replace(classifier, adapter=put_adapter(classifier.module.base_model, lora, seed))


def save_classifier(classifier: Classifier, folder: Path, masters: Mapping[str, Tensor]) -> None:
    """Write the classifier in Hugging Face form from its full-precision `masters`, an adapter merged into them."""
    module, adapter = classifier.module, classifier.adapter
    if adapter is None:
        save(module, classifier.tokenizer, folder, masters)
        return
    prefix = f"{module.base_model_prefix}."
    inside = {name.removeprefix(prefix): name for name in masters if name.startswith(prefix)}
    merged = adapter.merged(LazyTensors(inside, lambda name: masters[inside[name]]))
    head = [name for name in masters if not name.startswith(prefix)]
    state = LazyTensors(
        [*head, *(prefix + name for name in merged)],
        lambda name: merged[name.removeprefix(prefix)] if name.startswith(prefix) else masters[name],
    )
    with adapter.removed():
        save(module, classifier.tokenizer, folder, state)
