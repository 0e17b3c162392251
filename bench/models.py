"""The models, the tokenizer and the prompts, made once into `bench/.cache`.

Weights are random: only shapes matter for speed. The tokenizer is byte-level BPE, trained on shared
stories and GSM8K questions where `ONCURVE_TEST_DATA` names their folder (or `../shared/data` next to the project is
one), and otherwise on the project's own pages.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bench.cases import Case

__all__ = [
    "CACHE",
    "SIZES",
    "Size",
    "data_folder",
    "load_tokenizer",
    "model_path",
    "prompt_ids",
    "special_tokens",
    "token_rows",
]

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "bench" / ".cache"
TOKENIZER_SIZE = 8192
PROMPT = "Question: {question}\nThink step by step and end with #### and the number.\nAnswer:"


@dataclass(frozen=True)
class Size:
    """A Qwen2 shape; embeddings are tied."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int = TOKENIZER_SIZE

    @property
    def head_dim(self) -> int:
        """Dimensions of one head."""
        return self.hidden // self.heads

    def config(self, **others: Any) -> Any:
        """Return transformers' configuration of the shape; `others` are its arguments in place of the usual ones."""
        from transformers import Qwen2Config

        usual = {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
        }
        return Qwen2Config(**{**usual, **others})

    @property
    def body_parameters(self) -> int:
        """N_b, the parameters of the layers' matrix products."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_parameters(self) -> int:
        """N_h = V · h."""
        return self.vocabulary * self.hidden


SIZES: dict[str, Size] = {
    "6.5M": Size(256, 6, 4, 2, 704),
    "38M": Size(512, 12, 8, 2, 1408),
    "494M": Size(896, 24, 14, 2, 4864, vocabulary=151936),
}
"""The models by their names in the results."""


def data_folder() -> Path | None:
    """Return the folder of real text, if there is one."""
    named = os.environ.get("ONCURVE_TEST_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


@cache
def questions() -> list[str]:
    """GSM8K training questions in their order; generated ones of the same length where there is no data."""
    folder = data_folder()
    file = folder / "gsm8k" / "train.jsonl" if folder else None
    if file is not None and file.is_file():
        with file.open(encoding="utf-8") as lines:
            return [json.loads(line)["question"] for line in lines]
    draw = random.Random(0)
    names, things = ("Ada", "Ben", "Chen", "Dora", "Emil"), ("apples", "books", "coins", "shells", "stamps")
    return [" ".join(_sentence(draw, names, things) for _ in range(5)) for _ in range(1000)]


def _sentence(draw: random.Random, names: tuple[str, ...], things: tuple[str, ...]) -> str:
    name, thing = draw.choice(names), draw.choice(things)
    return (
        f"{name} has {draw.randrange(2, 99)} {thing} and gives {draw.randrange(2, 99)} of them to {draw.choice(names)}."
    )


def _texts() -> list[str]:
    folder = data_folder()
    texts = list(questions())
    if folder is not None and (folder / "text" / "tinystories_1000.json").is_file():
        texts.append((folder / "text" / "tinystories_1000.json").read_text(encoding="utf-8"))
    pages = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "src").rglob("*.py"))]
    return texts + [page.read_text(encoding="utf-8") for page in pages]


def _make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|end|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(_texts(), trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|end|>", pad_token="<|pad|>", padding_side="left"
    ).save_pretrained(folder)


@cache
def load_tokenizer() -> Any:
    """Return the tokenizer of every model here."""
    from transformers import AutoTokenizer

    folder = CACHE / "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        _make_whole(folder, _make_tokenizer)
    return AutoTokenizer.from_pretrained(folder)


def _make_whole(folder: Path, make: Any) -> None:
    """Make a folder under another name and rename it at the end, so that an interruption leaves no half of one."""
    unfinished = folder.with_name(folder.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    make(unfinished)
    unfinished.rename(folder)


def model_path(name: str, vocabulary: int | None = None) -> Path:
    """Return the folder of a model with its tokenizer, in Hugging Face form; made on the first call, float32."""
    size = SIZES[name]
    folder = CACHE / (name if vocabulary in (None, size.vocabulary) else f"{name}-V{vocabulary}")
    if not folder.is_dir():
        _make_whole(folder, lambda unfinished: _make_model(size, vocabulary or size.vocabulary, unfinished))
    return folder


def special_tokens(tokenizer: Any) -> dict[str, int | None]:
    """Return the arguments of a configuration for the tokens that a tokenizer ends and pads with."""
    return {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}


def _make_model(size: Size, vocabulary: int, folder: Path) -> None:
    import torch
    from transformers import Qwen2ForCausalLM

    tokenizer = load_tokenizer()
    torch.manual_seed(0)
    config = size.config(vocab_size=vocabulary, **special_tokens(tokenizer))
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@cache
def _encoded(question: int) -> tuple[int, ...]:
    known = questions()
    return tuple(load_tokenizer().encode(PROMPT.format(question=known[question % len(known)])))


def prompt_ids(case: Case, prompt: int) -> list[int]:
    """Return the tokens of the run's prompt number `prompt`: a question, or `case.prompt_tokens` of several in a row.

    Ids outside a smaller vocabulary are taken modulo its size.
    """
    ids = list(_encoded(prompt))
    if case.prompt_tokens is not None:
        following = prompt
        while len(ids) < case.prompt_tokens:
            following += 1
            ids += _encoded(following)
        ids = ids[: case.prompt_tokens]
    vocabulary = case.vocabulary or SIZES[case.model].vocabulary
    return ids if vocabulary >= TOKENIZER_SIZE else [token % vocabulary for token in ids]


def token_rows(case: Case, steps: int) -> list[list[int]]:
    """Return the prompts of `steps` steps, one after another."""
    return [prompt_ids(case, prompt) for prompt in range(steps * case.prompts)]
