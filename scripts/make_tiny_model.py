"""Makes the shipped tiny model, `src/oncurve/models/tiny/`: tokenizer, pretraining on right solutions, figures, README.

    python scripts/make_tiny_model.py [--out DIRECTORY] [--seed 0] [--threads 1]

It sees only right solutions of training problems, in three styles of working: careful ones at first, mostly hasty ones
in the end. So it leaps to answers that it cannot compute in one go, and can take small steps though it seldom does.
That small steps pay is what GRPO then finds out. Same seed, threads, machine and torch: same weights.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, processors
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from oncurve.tasks.arithmetic import (
    GAINS,
    LOSSES,
    PEOPLE,
    THINGS,
    Problem,
    check_steps,
    is_correct,
    problems,
)

Style = Literal["leap", "pairs", "steps"]
STYLES: tuple[Style, ...] = get_args(Style)
OPERATIONS_PER_LINE: dict[Style, int] = {"leap": 99, "pairs": 2, "steps": 1}

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
}
# First it is taught to compute, then it picks up haste: the share of each style early on, and in the last examples.
EARLY: dict[Style, float] = {"leap": 0.15, "pairs": 0.15, "steps": 0.7}
LATE: dict[Style, float] = {"leap": 0.37, "pairs": 0.48, "steps": 0.15}
HASTY = 0.25
EXAMPLES, BATCH, PEAK_RATE, WARMUP_UPDATES = 98_304, 64, 4e-3, 100
PRETRAINING_SEED = 1_000_003  # the sequence of problems: none of the small seeds that a recipe would take
HELD_OUT, NEW_TOKENS = 512, 72


def solution(problem: Problem, style: Style = "steps") -> str:
    """Return a right solution in `style`: lines of working, then `#### answer`, without a final newline.

    The styles differ in how many operations go into one line: one (`7*8=56`), two (`7*8+31=87`), or all.
    """
    terms, totals, most = problem.terms, problem.totals, OPERATIONS_PER_LINE[style]
    lines, left = [], terms[0]
    for first in range(1, len(terms), most):
        operations = terms[first : first + most]
        total = str(totals[first + len(operations) - 2])
        lines.append(f"{left}{''.join(operations)}={total}")
        left = total
    return "\n".join([*lines, f"#### {problem.answer}"])


def words() -> list[str]:
    """Return the pieces of the task's questions with their spaces: `Mia| has |7| bags of |8| beads|. She| finds
    |3|1`.
    """
    verbs = [f" {verb} " for verb in sorted(GAINS + LOSSES)]
    people = [*PEOPLE, *(f". {pronoun}" for pronoun in sorted(set(PEOPLE.values())))]
    return [
        *people,
        " has ",
        " bags of ",
        *(f" {thing}" for thing in THINGS),
        *verbs,
        " and",
        ". How many",
        " now",
        "#### ",
    ]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return words of the task, else single printable ASCII characters: such text comes back exactly; a digit is a
    token.
    """
    special = [PAD, BOS, EOS, UNK]
    characters = ["\n", *(chr(code) for code in range(32, 127))]
    # A word beats its letters: the likeliest segmentation is the one with the fewest pieces.
    pieces = [(piece, 0.0) for piece in special] + [(piece, -1.0) for piece in characters + words()]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=special.index(UNK), byte_fallback=False))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, special.index(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=SHAPE["max_position_embeddings"],
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a Llama of `SHAPE` with random weights, drawn from torch's global seed."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **SHAPE,
    )
    return LlamaForCausalLM(config)


def clean_examples(tokenizer: PreTrainedTokenizerFast, count: int, seed: int) -> list[tuple[list[int], int]]:
    """Return `(ids, prompt length)` of right solutions, their styles drawn by `STYLE_SHARES`. Every step is checked."""
    draw = random.Random(seed)
    late = int(count * HASTY)
    styles = draw.choices(STYLES, [EARLY[style] for style in STYLES], k=count - late)
    styles += draw.choices(STYLES, [LATE[style] for style in STYLES], k=late)
    asked = problems("train", count, PRETRAINING_SEED + seed)
    answers = [solution(item, style) for item, style in zip(asked, styles, strict=True)]
    for item, text in zip(asked, answers, strict=True):
        assert all(right for _, right in check_steps(text, item.question))
    prompts = tokenizer([item.prompt for item in asked])["input_ids"]
    completions = tokenizer(answers, add_special_tokens=False)["input_ids"]
    return [(p + c + [tokenizer.eos_token_id], len(p)) for p, c in zip(prompts, completions, strict=True)]


def batches(examples: Sequence[tuple[list[int], int]], pad_id: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return `(ids, labels)`, `(BATCH, T)` each, of examples of like length; labels are -100 on prompts and padding."""
    window = 32 * BATCH  # sorted by length within, so that little is padding, while the order over all stays random
    for first in range(0, len(examples) - window + 1, window):
        alike = sorted(examples[first : first + window], key=lambda example: len(example[0]))
        order = random.Random(first).sample(range(0, window, BATCH), window // BATCH)
        for start in order:
            rows = alike[start : start + BATCH]
            ids = torch.full((BATCH, max(len(row) for row, _ in rows)), pad_id)
            labels = torch.full_like(ids, -100)
            for i, (row, prompt) in enumerate(rows):
                ids[i, : len(row)] = torch.tensor(row)
                labels[i, prompt : len(row)] = ids[i, prompt : len(row)]
            yield ids, labels


def optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (it learns sums from half the examples AdamW needs), AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def pretrain(model: LlamaForCausalLM, examples: Sequence[tuple[list[int], int]], pad_id: int) -> float:
    """Return one pass over the examples, warm-up then cosine to zero; returns the mean of the last losses, nats a
    token.
    """
    updates = len(examples) // (32 * BATCH) * 32
    both = optimizers(model)
    losses: list[float] = []
    began = time.perf_counter()
    for update, (ids, labels) in enumerate(batches(examples, pad_id)):
        rate = PEAK_RATE * min(1.0, (update + 1) / WARMUP_UPDATES) * 0.5 * (1 + math.cos(math.pi * update / updates))
        logits = model(input_ids=ids, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in both:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        losses.append(loss.item())
        if update % 200 == 199:
            recent = sum(losses[-200:]) / 200
            print(f"update {update + 1}/{updates}  loss {recent:.4f}  {time.perf_counter() - began:.0f} s", flush=True)
    return sum(losses[-200:]) / len(losses[-200:])


@torch.no_grad()
def write_completions(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, asked: Sequence[Problem]
) -> list[str]:
    """Return what the model writes to each problem, greedily."""
    texts: list[str] = []
    for first in range(0, len(asked), 256):
        prompts = [item.prompt for item in asked[first : first + 256]]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        out = model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS)
        texts += tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return texts


def figures(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """Greedy accuracy on held-out problems for the README, over all and by their number of changes."""
    asked = problems("test", HELD_OUT)
    right = [
        is_correct(text, item) for text, item in zip(write_completions(model, tokenizer, asked), asked, strict=True)
    ]
    rows = {"all": right}
    for changes in sorted({len(item.changes) for item in asked}):
        rows[f"{changes} changes"] = [ok for ok, item in zip(right, asked, strict=True) if len(item.changes) == changes]
    return {name: f"{sum(ok) / len(ok):.1%} of {len(ok)}" for name, ok in rows.items()}


README = """# The tiny model

A Llama of {parameters:,} parameters in fp32: width {hidden_size}, {num_hidden_layers} layers, \
{num_attention_heads} heads that share {num_key_value_heads} sets of keys and values, tied embeddings, \
a vocabulary of {vocabulary}. It answers the problems of `oncurve.tasks.arithmetic`.
The tokenizer knows the words of the task; a digit, like any other printable ASCII character, is a token. A prompt \
begins with `<bos>`, which the tokenizer adds; a completion ends with `<eos>`.

| | |
|---|---|
| made by | `python scripts/make_tiny_model.py`: seed {seed}, {threads} thread, torch {torch}, {seconds:.0f} s |
| data | {examples:,} correct solutions of training problems, each step checked, each used once |
| the first {early_share:.0%} | mostly careful working: {early} |
| the last {late_share:.0%} | mostly hasty working: {late} |
| loss at the end | {loss:.4f} nats per completion token |
| greedy accuracy, held out | {accuracy} |

So the model can compute, but usually computes too much at once. The data contains no wrong line: the model's errors are
its own. No held-out problem occurs in the data, in any order of its numbers.
"""


def main() -> None:
    """Make the model, measure it, and write it with its README."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    home = Path(__file__).resolve().parent.parent / "src" / "oncurve" / "models" / "tiny"
    parser.add_argument("--out", type=Path, default=home, help="directory to write to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch; the weights depend on it in their last bits"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    began = time.perf_counter()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    loss = pretrain(model, clean_examples(tokenizer, EXAMPLES, chosen.seed), tokenizer.pad_token_id)
    seconds = time.perf_counter() - began
    model.eval().save_pretrained(chosen.out)
    tokenizer.save_pretrained(chosen.out)
    (chosen.out / "model.safetensors").chmod(0o644)  # save_pretrained makes it readable by its owner alone
    text = README.format(
        **SHAPE,
        parameters=model.num_parameters(),
        vocabulary=len(tokenizer),
        seed=chosen.seed,
        threads=chosen.threads,
        torch=torch.__version__,
        seconds=seconds,
        examples=EXAMPLES,
        early_share=1 - HASTY,
        late_share=HASTY,
        early=", ".join(f"{style} {share:.0%}" for style, share in EARLY.items()),
        late=", ".join(f"{style} {share:.0%}" for style, share in LATE.items()),
        loss=loss,
        accuracy=", ".join(f"{name} {share}" for name, share in figures(model, tokenizer).items()),
    )
    (chosen.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
