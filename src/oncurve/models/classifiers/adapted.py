"""A classifier with a low-rank adapter: its backbone is frozen, adapter and head are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from oncurve.base.errors import ModelError
from oncurve.durable import LazyTensors
from oncurve.models.adapters.inject import put_adapter
from oncurve.models.adapters.settings import LoraSettings
from oncurve.models.classifiers.classifier import Classifier
from oncurve.models.loading.saving import save


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
