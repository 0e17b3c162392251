"""The subject of a forecast: the shape of a model, and the work of one step.

A shape comes from a configuration, which is a few numbers, or from the command line; no weights are read.

The machine: its rates by name or by measurement, and its memory.

The limits of `counting` need three numbers of a machine. Here they are measured (`rehearsal`), and its memory
is the smallest of all limits.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from oncurve.base.errors import ConfigError, shown, suggest

GIB = 2**30
MOST = 1e24  # of bytes, or of FLOP/s: no machine has more


@dataclass(frozen=True)
class Machine:
    """Memory in bytes, matrix products in FLOP/s (bf16, dense), memory traffic in bytes a second; `source` of these.

    `dtype`: what `model.dtype = "auto"` is there. A card with "float32" has no bf16, and its rate is that of fp16.
    """

    name: str
    memory: float
    flops: float
    bandwidth: float
    source: str = "written down from memory"
    dtype: Literal["float32", "bfloat16"] = "bfloat16"


TABLES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
"""Machines and models by name, and the files of memory groups."""

MACHINES = {name: Machine(name, **row | {"memory": row["memory"] * GIB}) for name, row in TABLES["machines"].items()}

_QUANTITY = re.compile(r"(\d[\d_,]*(?:\.\d+)?(?:e\+?\d+)?)\s*([kmbgt]?)(i?)b?(?:/s)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4}


def parse_quantity(text: str, option: str, like: str) -> float:
    """Return the number that `"80GiB"`, `"4300GB/s"`, `"24e9"`, `"7B"` or `"7_000_000"` says.

    Raises ConfigError, naming the option and what it is `like`, for anything else.
    """
    found = _QUANTITY.fullmatch(text.strip())
    factor = 1.0 if found is None else (1024.0 if found[3] else 1000.0) ** _POWERS[found[2].lower()]
    value = 0.0 if found is None else factor * float(found[1].replace("_", "").replace(",", ""))
    if not 0 < value < MOST:
        raise ConfigError(f"{option} {shown(text)}: expected a number above 0, like {like}")
    return value


def machine(name: str, memory: str | None) -> Machine:
    """Return a machine by name, with `memory` in place of its own. Raises ConfigError: an unknown name, no amount."""
    full = TABLES["aliases"].get(name.lower(), name.lower())
    if full not in MACHINES:
        raise ConfigError(
            f"--machine {shown(name)}: unknown{suggest(name, MACHINES) or '; there are: ' + ', '.join(MACHINES)}"
        )
    found = MACHINES[full]
    return found if memory is None else replace(found, memory=parse_quantity(memory, "--memory", "80GiB"))


@dataclass(frozen=True)
class AvailableMemory:
    """The memory available to this process, in bytes, and the limit that decides it."""

    available: float
    limit: str


def memory_here(root: Path = Path("/")) -> AvailableMemory:
    """Return the memory available to this process: the machine's free memory, or what its control groups leave.

    Memory that this process holds already counts as available, because a plan counts the whole process; so do file
    caches, which the kernel can free. `root` stands in for `/`, for tests.
    """
    import psutil

    own = psutil.Process().memory_info().rss
    memory = psutil.virtual_memory()
    limits = [AvailableMemory(memory.available + own, "the machine's free memory")]
    limits += [
        AvailableMemory(max(limit - used, 0.0) + own, name)
        for name, limit, used in _groups(root)
        if limit < memory.total
    ]
    return min(limits, key=lambda limit: limit.available)


def _groups(root: Path) -> Iterator[tuple[str, float, float]]:
    """Yield limit and use of this process's memory groups and of all above them, version 2 and 1, where limited."""
    try:
        lines = [line.split(":", 2)[1:] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for controllers, path in lines:
        if controllers and "memory" not in controllers.split(","):
            continue
        version, top = ("1", root / "sys/fs/cgroup/memory") if controllers else ("2", root / "sys/fs/cgroup")
        limited, used, cache = TABLES["group_files"][version]
        folder = top / path.strip("/")
        for place in (folder, *folder.parents):
            limit = number_in(place / limited)
            if limit is not None:
                where = "/" + place.relative_to(top).as_posix().removeprefix(".")
                reclaimable = number_in(place / "memory.stat", cache) or 0.0
                yield f"cgroup v{version} {limited} of {where}", limit, (number_in(place / used) or 0.0) - reclaimable
            if place == top:
                break


def number_in(path: Path, key: str = "") -> float | None:
    """Return the number in a file, or on its line that begins with `key`; None: there is no file, or "max" in it."""
    try:
        words = path.read_text().split()
        return float(words[words.index(key) + 1 if key else 0])
    except (OSError, ValueError, IndexError):
        return None


LEAST_PARAMETERS, MOST_PARAMETERS = 1e6, 1e13

USUAL_RANK = 16
"""The rank of an adapter that is suggested where a model does not fit: that of the preset `lora`."""


@dataclass(frozen=True)
class ModelShape:
    """A transformer with gated layers. Example: Qwen2.5-0.5B is `ModelShape(24, 896, 14, 2, 64, 4864, 151936, True)`.

    layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary   as in a configuration
    tied      whether the head is the embedding
    counted   parameters as the module itself has them; None: by the formula of `parameters`
    positions the model's number of positions, prompt and completion together; None: not known
    adapter   parameters of the adapter that is trained while the model is frozen; 0: the model itself is trained
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    counted: int | None = None
    positions: int | None = None
    adapter: int = 0

    @property
    def trained(self) -> int:
        """Parameters with a gradient: the adapter's, or all of the model."""
        return self.adapter or self.parameters

    def low_rank(self, rank: int) -> int:
        """Return the parameters of LoRA matrices on all linear layers but the head: r·(in + out) of each, 7 a layer."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return rank * self.layers * (7 * self.hidden + 2 * (query + key) + 3 * self.intermediate)

    @property
    def layer_products(self) -> int:
        """Parameters in one layer's matrix products: 2·h·d·(heads + kv_heads) + 3·h·i."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def body(self) -> int:
        """N_b: parameters in the matrix products of all layers."""
        return self.layers * self.layer_products

    @property
    def head(self) -> int:
        """N_h = V·h."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All of them; by formula N_b + N_h (2·N_h where the head is not the embedding), without norms."""
        return self.counted if self.counted is not None else self.body + self.outside_layers

    @property
    def outside_layers(self) -> int:
        """Parameters of embedding and head."""
        return self.head * (1 if self.tied else 2)

    @property
    def attention_flops(self) -> int:
        """a = 4·L·heads·head_dim: FLOPs of a token for every token that it attends to."""
        return 4 * self.layers * self.heads * self.head_dim

    def cache_bytes(self, width: int = 2) -> int:
        """Return the bytes of a token's keys and values, in numbers of `width` bytes: 2·L·kv_heads·head_dim·width."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width


@dataclass(frozen=True)
class StepWork:
    """One step: M prompts of P tokens, G completions of C tokens each.

    prompts, group_size, completion_tokens   M, G, C
    prompt_tokens       P of each of the M prompts
    rows                completions decoded together, at most
    micro_tokens        tokens of one forward and backward pass, at most
    minibatches, ppo_epochs   per step `ppo_epochs` passes over the batch, each in `minibatches` updates
    old_pass            whether the old policy's log-probs are computed
    turns               of an episode, at most; its C tokens are the policy's and the environment's
    """

    prompts: int
    group_size: int
    completion_tokens: int
    prompt_tokens: tuple[int, ...]
    rows: int = 256
    micro_tokens: int = 16384
    minibatches: int = 1
    ppo_epochs: int = 1
    old_pass: bool = False
    turns: int = 1

    @property
    def completions(self) -> int:
        """B = M·G."""
        return self.prompts * self.group_size

    @property
    def mean_prompt(self) -> float:
        """P, on average."""
        return sum(self.prompt_tokens) / len(self.prompt_tokens)

    @property
    def prefills(self) -> float:
        """Prefills of a rollout, in those of its prompts: each further turn computes its row again, P + C/2 tokens."""
        again = self.group_size * (self.mean_prompt + self.completion_tokens / 2) / self.mean_prompt
        return 1.0 + (self.turns - 1) * again

    @property
    def group_tokens(self) -> float:
        """P + G·C: tokens of a group when its prompt is computed once."""
        return self.mean_prompt + self.group_size * self.completion_tokens

    @property
    def tokens(self) -> float:
        """M·(P + G·C)."""
        return self.prompts * self.group_tokens

    @property
    def updates(self) -> int:
        """Optimizer updates per step."""
        return self.ppo_epochs * min(self.minibatches, self.prompts)

    @property
    def micro_groups(self) -> float:
        """Groups in one forward and backward pass; a fraction where one is split (`batching.micro_batches`)."""
        from oncurve.batching import FILLED  # which loads torch

        whole, room = divmod(self.micro_tokens, self.group_tokens)
        part = max((room - self.mean_prompt) // self.completion_tokens, float(not whole)) / self.group_size
        found = whole + part if not whole or room >= FILLED * self.mean_prompt else whole
        return min(self.prompts / min(self.minibatches, self.prompts), found)

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes of one update."""
        in_minibatch = self.prompts / min(self.minibatches, self.prompts)
        return max(1, -int(-in_minibatch // self.micro_groups))

    @property
    def largest_micro(self) -> tuple[float, float]:
        """Tokens of the largest pass, and completion tokens among them."""
        completion = self.micro_groups * self.group_size * self.completion_tokens
        return completion + -(-self.micro_groups // 1) * self.mean_prompt, completion


MODELS = {name: ModelShape(**shape) for name, shape in TABLES["models"].items()}
"""Shapes by name, from the models' published configurations."""


def shape_of(config: Any, counted: int | None = None) -> ModelShape:
    """Return the shape in a transformers configuration; `counted`: its parameters, where a module has been counted.

    Raises ConfigError where the configuration lacks one of the numbers, as those of no transformer do.
    """
    text = config.get_text_config()
    found: dict[str, int] = {}
    for field, key in TABLES["numbers"].items():
        value = getattr(text, key, None)
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"the model's configuration ({type(text).__name__}) has no {key}: it cannot be planned")
        found[field] = value
    hidden, heads = found["hidden"], found["heads"]
    return ModelShape(
        **found,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or hidden // heads,
        intermediate=getattr(text, "intermediate_size", None) or 4 * hidden,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
        counted=counted,
        positions=getattr(text, "max_position_embeddings", None),
    )


def shape_of_size(parameters: float) -> ModelShape:
    """Return a usual shape with this number of parameters: the nearest named one, its layers made wider or narrower.

    Widths scale with √(parameters / those of the named one), heads and K/V heads with them; the vocabulary stays.
    Raises ConfigError below a million or above ten trillion parameters.
    """
    if not LEAST_PARAMETERS <= parameters <= MOST_PARAMETERS:
        raise ConfigError(f"--parameters {parameters:g}: give a number between 1M and 10T, like 7B or 7e9")
    near = min(MODELS.values(), key=lambda shape: abs(shape.body / parameters - 0.85))
    factor = (parameters / near.parameters) ** 0.5
    wide = {name: max(8, round(getattr(near, name) * factor)) for name in ("hidden", "intermediate")}
    return replace(
        near, **wide, head_dim=max(2, round(near.head_dim * factor)), counted=round(parameters), positions=None
    )
