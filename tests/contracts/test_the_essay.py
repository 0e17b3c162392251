"""`examples/grpo_in_one_file.py`: it is short, needs torch alone, runs, learns, and has the loss of the oracle."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from examples import grpo_in_one_file as essay
from torch import Tensor

from oracles.plain_grpo import PlainConfig, PlainGroup, reference_loss

FILE = Path(essay.__file__)
SETTINGS = essay.Settings(prompts=3, group_size=4, epsilon=0.1, beta=0.3)
REWARDS = torch.tensor([[0.0, 0.25, 0.25, 1.0], [0.7, 0.7, 0.7, 0.7], [0.5, 0.0, 0.75, 0.0]], dtype=torch.float64)


def test_it_is_one_short_file_that_needs_torch_alone() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text.count("\n") <= 200
    imported = {node.module if isinstance(node, ast.ImportFrom) else alias.name
                for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names}  # fmt: skip
    assert imported <= {"copy", "dataclasses", "torch"}


def policy_of(seed: int) -> essay.Policy:
    torch.manual_seed(seed)
    return essay.Policy(8).double()


def gradient(loss: Tensor, policy: essay.Policy) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(policy.parameters()))])


def test_its_loss_and_gradient_are_the_oracles() -> None:
    policy, old, reference = map(policy_of, range(3))
    prompts = torch.arange(SETTINGS.prompts).repeat_interleave(SETTINGS.group_size)[:, None]
    torch.manual_seed(7)
    completions, mask = essay.sample(old, prompts)
    assert len(set(mask.sum(1).tolist())) > 1, "completions of several lengths"
    old_logprobs, ref_logprobs = (essay.token_logprobs(m, prompts, completions).detach() for m in (old, reference))
    rows = [
        (int(q), o[m].tolist(), lp[m].tolist())
        for q, o, m, lp in zip(prompts[:, 0], completions, mask, old_logprobs, strict=True)
    ]
    size = SETTINGS.group_size
    groups = [
        PlainGroup(
            [rows[i * size][0]],
            [ids for _, ids, _ in rows[i * size : (i + 1) * size]],
            list(REWARDS[i].tolist()),
            [logprobs for *_, logprobs in rows[i * size : (i + 1) * size]],
        )
        for i in range(SETTINGS.prompts)
    ]
    config = PlainConfig(
        clip_low=SETTINGS.epsilon,
        clip_high=SETTINGS.epsilon,
        kl="k3",
        kl_coef=SETTINGS.beta,
        aggregation="seq-mean-token-mean",
    )
    wanted = reference_loss(lambda ids: policy(ids)[0], groups, config, lambda ids: reference(ids)[0])
    logprobs, advantage = essay.token_logprobs(policy, prompts, completions), essay.advantages(REWARDS).flatten()
    found = essay.grpo_loss(logprobs, old_logprobs, ref_logprobs, advantage, mask, SETTINGS)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(found, policy), gradient(wanted, policy), rtol=1e-10, atol=1e-12)


def test_it_learns() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the script does
    history = essay.train(essay.Settings(steps=20), report=0)
    torch.set_num_threads(threads)
    assert sum(history[-3:]) / 3 > sum(history[:3]) / 3 + 0.3


@pytest.mark.slow
def test_it_runs_as_a_script_and_prints_a_reward_that_rises() -> None:
    printed = subprocess.run([sys.executable, str(FILE)], capture_output=True, text=True, check=True).stdout
    rewards = [float(found) for found in re.findall(r"reward (\d\.\d+)", printed)]
    assert len(rewards) == 5
    assert rewards[0] < 0.1
    assert rewards[-1] > 0.8
