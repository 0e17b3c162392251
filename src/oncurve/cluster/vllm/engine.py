"""Sampling by vLLM servers: a worker that has a server in place of an engine of its own.

    FleetEngine --calls--> Worker --HTTP--> vLLM server        one server per worker

A worker has a copy of the policy, as every worker has. It writes a new version of it as a folder in Hugging Face form,
in memory where there is room, has the server load that, and compares the server's log-probs of a few tokens with those
of the copy. A server that fails in any of this, or in a shard, is lost with its worker: the cause is told, the shard is
drawn again with the same seeds, and another worker starts a server with the weights of then.

vLLM has kernels and a sampler of its own, so its tokens are not those of oncurve's engine, and its log-probs are not
exact: the learner computes the old ones again, and `[correction]` applies.
"""

import math
import resource
import secrets
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from oncurve.base.errors import ConfigError, TrainingError
from oncurve.cluster.vllm.server import DEVELOPER, ROUTE, VllmServer, start_server
from oncurve.models import CausalModel, Weights, save
from oncurve.processes import Minder
from oncurve.randomness import row_keys
from oncurve.rollout import Detokenizer, EngineBase, OnGroup, Sampling, Tokenizer, check_lengths, count_samples
from oncurve.types import Completion, Ending, Group, Prompt

CHECK_PROMPT_TOKENS, CHECK_TOKENS = 300, 16
"""The check of new weights: tokens of its prompt, more than a block of a prefix cache (16, and 128 on a CPU), so that
values of earlier weights in it are found; and tokens that are sampled."""

TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-3, 0.1
"""The mean absolute difference of log-probs, in nats, above which a server has other weights; and that of weights with
fewer bits than float32."""


class VllmEngine(EngineBase):
    """A `RolloutEngine` over one server, which it starts with the first weights.

    tokenizer, eos_ids, seed   as of `oncurve.rollout.InProcessEngine`
    arguments                  further ones of `vllm serve`
    seconds                    the limit of a start, an update and a request
    gpus                       among which the server divides the model

    Raises TrainingError wherever the server fails; the engine is of no use after that.
    """

    exact = False
    """The server has kernels of its own."""

    def __init__(
        self,
        sampling: Sampling,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
        arguments: Sequence[str] = (),
        seconds: float = 1800.0,
        gpus: int = 1,
    ) -> None:
        self.sampling, self._arguments, self._seconds, self._gpus = sampling, arguments, seconds, gpus
        self._tokenizer, self._eos_ids, self._seed = tokenizer, tuple(eos_ids), seed
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a request takes four files, and 1,024 is usual
        self._key = secrets.token_urlsafe(32)
        self._minder: Minder | None = None
        self._server: VllmServer | None = None
        self._model: CausalModel | None = None
        self._folder, self._version = Path(), 0
        self._longest: int | None = None

    def follow(self, weights: Weights) -> None:
        """Have the server sample from these weights from now on, and check that it does.

        Raises ConfigError: vllm is not on PATH.
        """
        model = weights.local()
        assert model is not None
        if self._minder is None:
            nbytes = sum(tensor.nbytes for tensor in model.module.parameters())
            self._minder = Minder({**DEVELOPER, "VLLM_API_KEY": self._key}, nbytes)
        else:
            shutil.rmtree(self._folder, ignore_errors=True)  # the server has these weights
        self._folder, self._version = self._minder.folder / f"version-{weights.version}", weights.version
        save(model.module, None, self._folder, adapter=model.adapter)
        if self._server is None:
            dtype = str(next(model.module.parameters()).dtype).removeprefix("torch.")
            self._server = start_server(self._minder, self._key, self._folder, dtype, self._gpus, self._arguments)
            self._server.wait_until_ready(self._seconds)
            self._longest = self._server.longest_row()
            self._server.name_weights(str(self._version))
        else:
            self._server.update(self._folder, str(self._version), self._seconds)
        self._model = model
        self.check()

    def check(self) -> float:
        """Return the mean absolute difference between the server's log-probs of a few tokens and those of the weights.

        It finds other weights only where they change log-probs by more than the tolerance. Raises TrainingError:
        it is above the tolerance.
        """
        model = self._model
        assert model is not None

        @torch.no_grad()
        def logits(prompt: list[int], ids: list[int]) -> torch.Tensor:
            first, length = torch.tensor([0]), torch.tensor([len(ids)])
            return model.logits(model.completion_hidden([torch.tensor(prompt)], first, torch.tensor([ids]), length))

        size = logits([0], [0]).shape[-1]
        limits = [limit - CHECK_TOKENS for limit in (model.longest_row, self._longest) if limit is not None]
        prompt = [index % size for index in range(1, 1 + max(1, min([CHECK_PROMPT_TOKENS, *limits])))]
        sampling = Sampling(group_size=1, max_new_tokens=CHECK_TOKENS, temperature=1.0, max_concurrent=1)
        ((ids, found),) = self._ask("check", prompt, sampling, 0, (), 1)
        if max(ids) >= size:
            raise TrainingError(f"it answered the token {max(ids)}, and the model's vocabulary has {size}")
        right = logits(prompt, ids).double().log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        difference = float((torch.tensor(found, dtype=torch.float64) - right).abs().mean())
        wide = next(model.module.parameters()).dtype.itemsize >= torch.float32.itemsize
        tolerance = TOLERANCE if wide else LOW_PRECISION_TOLERANCE
        if difference > tolerance:
            raise TrainingError(
                f"after an update its log-probs differ from those of version {self._version} by {difference:.3g} per "
                f"token, more than {tolerance:g}: it does not sample from these weights"
            )
        return difference

    def generate(
        self,
        prompts: Sequence[Prompt],
        draw: int,
        sampling: Sampling | None = None,
        on_group: OnGroup | None = None,
        first_samples: Sequence[int] | None = None,
    ) -> list[Group]:
        """Return one group per prompt, in the prompts' order, without scores.

        Each completion has a seed of its own: a function of the run's seed, the draw and the prompt's id, plus the
        sample's index. vLLM gives the i-th completion of a request the request's seed plus i, so one request asks for
        a group. At temperature 0 vLLM refuses more than one completion per request.

        Raises DataError: a prompt without tokens, or too long for the model. ConfigError: too long for the server.
        """
        sampling = sampling or self.sampling
        assert self._model is not None
        check_lengths(prompts, sampling, self._model)
        self._check_lengths(prompts, sampling)
        firsts = count_samples(prompts, sampling.group_size) if first_samples is None else first_samples
        ends, size = self._eos_ids + sampling.eos_ids, sampling.group_size
        together = sampling.rows_at_once("cuda")
        most = min(size, together) if sampling.temperature else 1
        pieces = [(index, start) for index in range(len(prompts)) for start in range(0, size, most)]
        ids = torch.tensor([prompt.id for prompt in prompts])
        seeds = [key & (2**62 - 1) for key in row_keys(self._seed, draw, ids, torch.zeros_like(ids)).tolist()]

        def ask(piece: tuple[int, int]) -> list[Completion]:
            index, start = piece
            prompt, number = prompts[index], firsts[index] + start
            name, seed, count = f"{draw}-{prompt.id}-{number}", seeds[index] + number, min(most, size - start)
            made: list[Completion] = []
            for row, logprobs in self._ask(name, prompt.ids, sampling.of(prompt), seed, ends, count):
                ended: Ending = "eos" if row[-1] in ends else "length"
                kept = row[:-1] if ended == "eos" else row
                text = "" if self._tokenizer is None else Detokenizer(self._tokenizer).after(prompt.ids)(kept)
                of = number + len(made)
                made.append(Completion(tuple(row), text, tuple(logprobs), ended, of, self._version))
            return made

        with ThreadPoolExecutor(max(1, together // most)) as threads:
            found = list(chain.from_iterable(threads.map(ask, pieces)))
        groups = []
        for index, prompt in enumerate(prompts):
            groups.append(Group(prompt, tuple(found[index * size : (index + 1) * size]), draw=draw))
            if on_group is not None:
                on_group(index, groups[-1])
        return groups

    def close(self) -> None:
        """End the server, and let go of the model."""
        if self._minder is not None:
            self._minder.close()
        self._server, self._minder, self._model = None, None, None

    def _check_lengths(self, prompts: Sequence[Prompt], sampling: Sampling) -> None:
        lengths = [(len(prompt.ids), sampling.of(prompt).max_new_tokens) for prompt in prompts]
        longest, most = max(lengths, key=sum)
        if self._longest is not None and longest + most > self._longest:
            raise ConfigError(
                f"cluster.engine: a vLLM server takes {self._longest} tokens of a prompt with its completion, and here "
                f"are {longest} of a prompt and {most} new ones; start it with a larger "
                "--max-model-len (cluster.vllm_arguments), or lower rollout.max_new_tokens"
            )

    def _ask(
        self, name: str, ids: Sequence[int], sampling: Sampling, seed: int, ends: Sequence[int], count: int
    ) -> list[tuple[list[int], list[float]]]:
        """Return the tokens, and their log-probs, of `count` completions that follow `ids`, by seeds from `seed` on."""
        assert self._server is not None
        settings = {**translated(sampling, ends), "n": count, "seed": seed}
        body = {"request_id": f"{self._version}-{name}", "token_ids": list(ids), "sampling_params": settings}
        answer = self._server.ask(ROUTE, body, self._seconds)
        return checked(answer, sampling, ends, str(self._version), count)


def translated(sampling: Sampling, ends: Sequence[int]) -> dict[str, Any]:
    """Return `sampling` in the words of vLLM's `SamplingParams`, without seed and number of completions."""
    return {
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": sampling.max_new_tokens,
        "logprobs": 0,  # of the sampled token alone
        "stop_token_ids": sorted(set(ends)),
        "ignore_eos": True,  # `ends` has all tokens that end a completion
        "detokenize": False,
    }


def checked(
    answer: Any, sampling: Sampling, ends: Sequence[int], version: str, count: int
) -> list[tuple[list[int], list[float]]]:
    """Return tokens and log-probs of each completion of an answer. Raises TrainingError: they are not `count`
    completions by these settings and weights."""
    try:
        choices = {choice["index"]: choice for choice in answer["choices"]}
        found = [_read(choices.pop(index)) for index in range(count)]
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"it answered no completion ({type(error).__name__}: {error}): {answer!r:.200}") from error
    if choices:
        raise TrainingError(f"it answered {count + len(choices)} completions, and {count} were asked for")
    for ids, logprobs, versions in found:
        if not 0 < len(ids) <= sampling.max_new_tokens or len(logprobs) != len(ids):
            raise TrainingError(
                f"it answered {len(ids)} tokens with {len(logprobs)} log-probs, and {sampling.max_new_tokens} at most "
                "were asked for"
            )
        if not all(math.isfinite(value) and value <= 1e-3 for value in logprobs):
            raise TrainingError("it answered log-probs that are not finite numbers, or above 0")
        if versions - {version}:
            raise TrainingError(f"it sampled from the weights {sorted(versions)}, and should have from {version}")
        early = [token for token in ids[:-1] if token in ends]
        if early or (ids[-1] not in ends and len(ids) < sampling.max_new_tokens):
            raise TrainingError(f"a completion of {len(ids)} tokens does not end where the settings end one")
    return [(ids, logprobs) for ids, logprobs, _ in found]


def _read(choice: Mapping[str, Any]) -> tuple[list[int], list[float], set[str]]:
    """Return tokens, log-probs and the names of the weights of one completion."""
    content: list[Mapping[str, Any]] = choice["logprobs"]["content"]
    versions = {str(span["version"]) for span in choice.get("weight_versions") or ()}
    return [int(token) for token in choice["token_ids"]], [float(token["logprob"]) for token in content], versions
