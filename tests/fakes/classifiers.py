"""Tiny random transformers classifiers on the disk, with a tokenizer beside them."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
    PreTrainedTokenizerFast,
)

from fakes.architectures import SMALL, seeded
from oncurve.models import tiny
from oncurve.models.classifiers.classifier import Classifier, HeadKind
from oncurve.models.classifiers.load import load_classifier

LONGEST = 96
"""Tokens that they read."""

TRIMMING = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n{% endfor %}"
"""A chat template that strips white space from what is said, and writes letters of its own behind it."""

CLASSES = {
    "outcome": LlamaForSequenceClassification,
    "process": LlamaForTokenClassification,
    "causal": LlamaForCausalLM,
}


@functools.cache
def shipped_tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny.path())


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte: characters beyond ASCII are several tokens, which all say that they write it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({**{c: i for i, c in enumerate(alphabet)}, "<eos>": 256, "<pad>": 257}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>")


def lay_down(
    folder: Path,
    kind: str = "outcome",
    *,
    labels: Mapping[int, str] | int | None = None,
    seed: int = 0,
    template: str | None = None,
    tokenizer: Any = None,
    longest: int = LONGEST,
    dropout: float = 0.0,
) -> Path:
    """A model of `kind` in `folder`; of several labels with names or without. Its weights are far from 0."""
    labels = (2 if kind == "process" else 1) if labels is None else labels
    named = {"num_labels": labels} if isinstance(labels, int) else {"id2label": dict(labels)}
    tokenizer = shipped_tokenizer() if tokenizer is None else tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=longest,
        attention_dropout=dropout,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SMALL,
        **named,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = CLASSES[kind](config)
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def lay_down_bert(folder: Path) -> Path:
    """A BERT of one label, whose tokenizer puts a token before a text and one behind it, and has no end of text."""
    words = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"))}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    config = BertConfig(vocab_size=len(words), max_position_embeddings=LONGEST, num_labels=1, **SMALL)
    seeded(lambda: BertForSequenceClassification(config)).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    return folder


def classifier(folder: Path, head: HeadKind = "outcome", **settings: Any) -> Classifier:
    """A tiny classifier, made in `folder` and loaded from it."""
    return load_classifier(str(lay_down(folder, head, **settings)), head, device="cpu")
