"""Sampling by vLLM servers: a worker that has a server in place of an engine of its own.

    FleetEngine --calls--> VllmWorker --HTTP--> vLLM server        one server per worker

A worker has a copy of the policy, as every worker has. It writes a new version of it as a folder in Hugging Face form,
in memory where there is room, has the server load that, and compares the server's log-probs of a few tokens with those
of the copy. So only servers that run already need a folder that both see. A server that fails in any of this, or in a
shard, is lost with its worker: the cause is told, the shard is drawn again with the same seeds, and another worker
starts a server with the weights of then.

vLLM has kernels and a sampler of its own, so its tokens are not those of oncurve's engine, and its log-probs are not
exact: the learner computes the old ones again, and `[correction]` applies.
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import secrets
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from oncurve.base.errors import ConfigError, OncurveError
from oncurve.cluster.vllm.server import DEVELOPER, ROUTE, ServerFaultError, VllmServer, command_line, start_server
from oncurve.cluster.workers import Brought, Lost, Worker
from oncurve.models import CausalModel, Weights, save
from oncurve.processes import Minder
from oncurve.randomness import row_keys
from oncurve.rollout import Detokenizer, EngineBase, OnGroup, Sampling, Tokenizer, check_lengths, count_samples
from oncurve.types import Completion, Ending, Group, Prompt

CHECK_PROMPT_TOKENS, CHECK_TOKENS = 300, 16
"""The check of new weights: tokens of its prompt, more than a block of a prefix cache (16, and 128 on a CPU), so that
values of earlier weights in it are found; and tokens that are sampled."""

CHECK_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
"""The mean absolute difference of log-probs, in nats, above which a server has other weights."""

LOW_PRECISION_TOLERANCE = 0.1
"""The bound where the weights have fewer bits than float32."""


@dataclass(frozen=True)
class VllmSettings:
    """Settings of a worker's server.

    addresses        of servers that run already, one per worker; none: each worker starts its own
    folder           for weights, which these servers see under the same name; "": of no use
    arguments        of servers that are started
    seconds          the limit of a start, an update and a request
    silence_seconds  a server that does not say for so long that it lives is lost
    gpus             among which a server that is started divides the model
    key              of servers that run already; "": they have none
    """

    addresses: tuple[str, ...] = ()
    folder: str = ""
    arguments: tuple[str, ...] = ()
    seconds: float = 1800.0
    silence_seconds: float = 20.0
    gpus: int = 1
    key: str = field(default="", repr=False)


class VllmEngine(EngineBase):
    """A `RolloutEngine` over one server, which it starts with the first weights.

    tokenizer, eos_ids, seed   as of `oncurve.rollout.InProcessEngine`

    Raises ServerFaultError wherever the server fails; the engine is of no use after that.
    """

    exact = False
    """The server has kernels of its own."""

    def __init__(
        self,
        settings: VllmSettings,
        sampling: Sampling,
        tokenizer: Tokenizer | None = None,
        eos_ids: Sequence[int] = (),
        seed: int = 0,
    ) -> None:
        self.sampling, self._settings = sampling, settings
        self._tokenizer, self._eos_ids, self._seed = tokenizer, tuple(eos_ids), seed
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a request takes four files, and 1,024 is usual
        self._key = settings.key if settings.addresses else secrets.token_urlsafe(32)
        self._minder: Minder | None = None
        self._server: VllmServer | None = None
        self._model: CausalModel | None = None
        self._place, self._folder, self._lock = Path(), Path(), -1
        self._run, self._name, self._version = secrets.token_hex(4), "", 0
        self._longest: int | None = None

    def follow(self, weights: Weights) -> None:
        """Have the server sample from these weights from now on, and check that it does.

        Raises ConfigError: vllm is not on PATH.
        """
        model = weights.local()
        assert model is not None
        begins = self._server is None
        if begins:
            self._begin(sum(tensor.nbytes for tensor in model.module.parameters()))
        else:
            shutil.rmtree(self._folder, ignore_errors=True)  # the server has these weights
        self._folder, self._version = self._place / f"version-{weights.version}", weights.version
        self._name = f"{weights.version}-{self._run}"  # another run that uses the same server has other names
        save(model.module, None, self._folder, adapter=model.adapter)
        if self._server is None:
            self._start(model)
        assert self._server is not None
        if begins:
            self._server.watch(self._settings.silence_seconds)
            self._longest = self._server.longest_row()
        if begins and self._minder is not None:
            self._server.post("/update_weight_version", {"new_version": self._name})
        else:
            self._server.update(self._folder, self._name, self._settings.seconds)
        self._model = model
        self.check()

    def check(self) -> float:
        """Return the mean absolute difference between the server's log-probs of a few tokens and those of the weights.

        It finds other weights only where they change log-probs by more than the tolerance. Raises ServerFaultError:
        it is above the tolerance.
        """
        model = self._model
        assert model is not None
        one = torch.ones(1, dtype=torch.int64)
        with torch.no_grad():
            size = model.logits(model.completion_hidden([one - 1], one - 1, one[None] - 1, one)).shape[-1]
            limits = [limit - CHECK_TOKENS for limit in (model.longest_row, self._longest) if limit is not None]
            prompt = [index % size for index in range(1, 1 + max(1, min([CHECK_PROMPT_TOKENS, *limits])))]
            sampling = Sampling(group_size=1, max_new_tokens=CHECK_TOKENS, temperature=1.0, max_concurrent=1)
            ((ids, found),) = self._ask("check", prompt, sampling, 0, (), 1)
            if max(ids) >= size:
                raise ServerFaultError(f"it answered the token {max(ids)}, and the model's vocabulary has {size}")
            hidden = model.completion_hidden(
                [torch.tensor(prompt)], one - 1, torch.tensor(ids)[None], torch.tensor([len(ids)])
            )
            right = model.logits(hidden).double().log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        difference = float((torch.tensor(found, dtype=torch.float64) - right).abs().mean())
        tolerance = CHECK_TOLERANCE.get(next(model.module.parameters()).dtype, LOW_PRECISION_TOLERANCE)
        if difference > tolerance:
            raise ServerFaultError(
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
            rows = self._ask(name, prompt.ids, sampling.of(prompt), seed, ends, count)
            return [self._completion(prompt, number + i, *row, ends) for i, row in enumerate(rows)]

        with ThreadPoolExecutor(max(1, together // most)) as threads:
            found = list(chain.from_iterable(threads.map(ask, pieces)))
        groups = []
        for index, prompt in enumerate(prompts):
            groups.append(Group(prompt, tuple(found[index * size : (index + 1) * size]), draw=draw))
            if on_group is not None:
                on_group(index, groups[-1])
        return groups

    def close(self) -> None:
        """End the server, if it was started here, and let go of the model."""
        for held in (self._server, self._minder):
            if held is not None:
                held.close()
        if self._lock >= 0:
            os.close(self._lock)
        self._server, self._minder, self._model, self._folder, self._lock = None, None, None, Path(), -1

    def _begin(self, nbytes: int) -> None:
        """Make a folder for weights of so many bytes. Take a server that runs, or make the minder of one to be started.

        Raises ServerFaultError: no server that runs is free, or the free one cannot be used.
        """
        if self._settings.addresses:
            self._server = VllmServer(self._claimed(), self._key)
            self._server.check_routes()
        else:
            self._minder = Minder({**DEVELOPER, "VLLM_API_KEY": self._key}, nbytes)
            self._place = self._minder.folder

    def _claimed(self) -> str:
        """Return the address of the server that was claimed longest ago, of those that no living worker has."""
        root = Path(self._settings.folder)
        claims = [root / f"{number}.lock" for number in range(len(self._settings.addresses))]
        for number in sorted(range(len(claims)), key=lambda each: _changed(claims[each])):
            self._lock = os.open(claims[number], os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
                continue
            os.utime(self._lock)
            self._place = root / str(number)
            shutil.rmtree(self._place, ignore_errors=True)
            self._place.mkdir()
            return self._settings.addresses[number]
        self._lock = -1
        raise ServerFaultError("every server of cluster.vllm_addresses has a worker")

    def _start(self, model: CausalModel) -> None:
        """Start a server of this worker's own, with the weights in the folder."""
        assert self._minder is not None
        dtype = str(next(model.module.parameters()).dtype).removeprefix("torch.")
        more, gpus, folder = self._settings.arguments, self._settings.gpus, self._folder
        self._server = start_server(self._minder, self._key, lambda port: command_line(folder, port, dtype, gpus, more))
        self._server.wait_until_ready(self._settings.seconds)
        self._server.check_guarded()

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
        body = {
            "request_id": f"{self._name}-{name}",
            "token_ids": list(ids),
            "sampling_params": {**translated(sampling, ends), "n": count, "seed": seed},
        }
        answer = self._server.post(ROUTE, body, self._settings.seconds)
        return checked(answer, sampling, ends, self._name, count)

    def _completion(
        self,
        prompt: Prompt,
        number: int,
        ids: list[int],
        logprobs: list[float],
        ends: Sequence[int],
    ) -> Completion:
        ended: Ending = "eos" if ids[-1] in ends else "length"
        kept = ids[:-1] if ended == "eos" else ids
        text = "" if self._tokenizer is None else Detokenizer(self._tokenizer).after(prompt.ids)(kept)
        return Completion(tuple(ids), text, tuple(logprobs), ended, number, self._version)


def vllm_engine(
    sampling: Sampling, tokenizer: Tokenizer | None, eos_ids: Sequence[int], seed: int, settings: VllmSettings
) -> VllmEngine:
    """Return the engine of a worker."""
    return VllmEngine(settings, sampling, tokenizer, eos_ids, seed)


class VllmWorker(Worker):
    """A worker whose engine is a `VllmEngine`: where the server fails the worker is `Lost`."""

    _cause: str | None = None

    def take(self, version: int, digest: str, what: Brought) -> None:
        """Sample from the weights in `what` from now on; see `Worker.take`."""
        try:
            super().take(version, digest, what)
        except (ServerFaultError, ConfigError) as fault:
            self._cause = str(fault)

    def decode(
        self, digest: str, prompts: Sequence[Prompt], draw: int, sampling: Sampling | None, firsts: Sequence[int]
    ) -> list[Group] | OncurveError | Lost:
        """Return the groups of a shard, why they cannot be made, or why this worker can do nothing more."""
        try:
            return Lost(self._cause) if self._cause else super().decode(digest, prompts, draw, sampling, firsts)
        except ServerFaultError as fault:
            self._cause = str(fault)
            return Lost(self._cause)


def _changed(file: Path) -> float:
    """Return when a file was changed; long ago where there is none."""
    return file.stat().st_mtime if file.exists() else 0.0


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
    """Return tokens and log-probs of each completion of an answer. Raises ServerFaultError: they are not `count`
    completions by these settings and weights."""
    try:
        choices = {choice["index"]: choice for choice in answer["choices"]}
        found = [_read(choices.pop(index)) for index in range(count)]
    except (KeyError, TypeError, ValueError) as error:
        raise ServerFaultError(
            f"it answered no completion ({type(error).__name__}: {error}): {answer!r:.200}"
        ) from error
    if choices:
        raise ServerFaultError(f"it answered {count + len(choices)} completions, and {count} were asked for")
    for ids, logprobs, versions in found:
        if not 0 < len(ids) <= sampling.max_new_tokens or len(logprobs) != len(ids):
            raise ServerFaultError(
                f"it answered {len(ids)} tokens with {len(logprobs)} log-probs, and {sampling.max_new_tokens} at most "
                "were asked for"
            )
        if not all(math.isfinite(value) and value <= 1e-3 for value in logprobs):
            raise ServerFaultError("it answered log-probs that are not finite numbers, or above 0")
        if versions - {version}:
            raise ServerFaultError(f"it sampled from the weights {sorted(versions)}, and should have from {version}")
        early = [token for token in ids[:-1] if token in ends]
        if early or (ids[-1] not in ends and len(ids) < sampling.max_new_tokens):
            raise ServerFaultError(f"a completion of {len(ids)} tokens does not end where the settings end one")
    return [(ids, logprobs) for ids, logprobs, _ in found]


def _read(choice: Mapping[str, Any]) -> tuple[list[int], list[float], set[str]]:
    """Return tokens, log-probs and the names of the weights of one completion."""
    content: list[Mapping[str, Any]] = choice["logprobs"]["content"]
    versions = {str(span["version"]) for span in choice.get("weight_versions") or ()}
    return [int(token) for token in choice["token_ids"]], [float(token["logprob"]) for token in content], versions
