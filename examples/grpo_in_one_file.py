"""GRPO in one file, to be read from top to bottom. It needs torch alone and runs in seconds on a CPU:

    python examples/grpo_in_one_file.py

Group Relative Policy Optimization is PPO without a critic. PPO asks a second network how good a completion was going to
be, and trains on the surprise. GRPO samples a group of G completions of the same prompt instead, and takes their mean
reward for the expectation: what is better than its siblings is made likelier, what is worse less likely.

Equations and lines are those of DeepSeekMath (arXiv:2402.03300): the objective is its equation 3, the KL estimator its
equation 4, the advantages its section 4.1.2, and `train` its Algorithm 1. The task is to count: after the prompt 8 the
right completion is 9 0 1 stop. The model begins with random weights, so all that it learns it learns by GRPO.

Shapes: P prompts, G completions of each, B = P·G rows, T tokens of the longest completion, V tokens in the vocabulary.
oncurve does the same for real models. It differs where it must scale, and the tests hold this file, oncurve and a third
implementation (`tests/oracles/plain_grpo`) to the same loss.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

STOP, VOCABULARY, LONGEST = 10, 11, 6  # tokens 0 to 9 are digits


@dataclass
class Settings:
    prompts: int = 10  # P, prompts per step
    group_size: int = 16  # G, completions per prompt
    epsilon: float = 0.2  # ε, how far the ratio to the old policy may move before the gradient ends
    beta: float = 0.04  # β, the weight of the KL to the reference: the paper's value
    updates: int = 2  # μ, updates per batch of completions
    steps: int = 80  # M
    learning_rate: float = 1e-2


class Policy(nn.Module):
    """A language model as small as can be: ids (B, n) to logits (B, n, V), position t for the token at t + 1."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.memory = nn.GRU(width, width, batch_first=True)  # reads from left to right: no token sees a later one
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.memory(self.embedding(ids))[0])


# ---- The task ------------------------------------------------------------------------------------------------------


def reward(prompt: int, completion: list[int]) -> float:
    """The share of the right completion that was written before the first mistake: 0, ¼, ½, ¾ or 1.

    A reward of right or wrong alone would be 0 for every completion of a model that knows nothing, and a group whose
    rewards are all the same teaches nothing (see `advantages`).
    """
    right = [(prompt + 1) % 10, (prompt + 2) % 10, (prompt + 3) % 10, STOP]
    matched = 0
    for wanted, written in zip(right, completion, strict=False):
        if wanted != written:
            break
        matched += 1
    return matched / len(right)


@torch.no_grad()
def sample(model: Policy, prompts: Tensor) -> tuple[Tensor, Tensor]:
    """Completions of prompts (B, 1): ids (B, T), and a mask (B, T) that is True up to the stop token, it included.

    Sampled at temperature 1 from the whole distribution. Under another temperature, or top-p, the completions would
    come from another policy than the one whose log-probs enter the loss.
    """
    ids, running, mask = prompts, torch.ones(len(prompts), dtype=torch.bool), []
    for _ in range(LONGEST):
        token = torch.multinomial(model(ids)[:, -1].softmax(-1), 1)
        ids = torch.cat([ids, token], 1)
        mask.append(running)
        running = running & (token[:, 0] != STOP)  # the stop token itself is a decision: it is trained
    return ids[:, prompts.shape[1] :], torch.stack(mask, 1)


# ---- The mathematics -----------------------------------------------------------------------------------------------


def advantages(rewards: Tensor) -> Tensor:
    """Section 4.1.2: Â_i = (r_i - mean r) / std r over the group. (P, G) to (P, G).

    The sign: above the mean is positive, and makes the completion likelier. The denominator makes hard prompts, where
    rewards differ little, weigh as much as others; Dr.GRPO (arXiv:2503.20783) leaves it out for that reason. The paper
    does not say which standard deviation; it is the sample's (G - 1) here, as `torch.std` has it. 1e-6 keeps the
    division finite.
    """
    centred = rewards - rewards.mean(1, keepdim=True)
    constant = rewards.max(1, keepdim=True).values == rewards.min(1, keepdim=True).values
    # Where all rewards are the same the advantage is 0. It must be said: the mean of eight times 0.7 is not 0.7 in
    # floating point, and rounding divided by its own standard deviation would be an advantage of any size.
    return torch.where(constant, 0.0, centred / (rewards.std(1, keepdim=True) + 1e-6))


def token_logprobs(model: Policy, prompts: Tensor, completions: Tensor) -> Tensor:
    """log π(o_t | q, o_<t) of each completion token: (B, T)."""
    logits = model(torch.cat([prompts, completions], 1))
    # The logits at a position are for the next token. So those of completion token t stand one place before it: the
    # first at the last token of the prompt. The last position predicts what comes after the end, and is dropped.
    logits = logits[:, prompts.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(-1, completions[..., None])[..., 0]


def kl(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Equation 4: π_ref/π_θ - log(π_ref/π_θ) - 1 per token, at least 0, and 0 where the two agree. (B, T).

    The sign of the difference: reference less policy. Its mean over tokens of the policy is KL(π_θ || π_ref); each
    token's value is positive, so it varies less than log π_θ - log π_ref, which has the same mean.
    """
    difference = ref_logprobs - logprobs
    return difference.exp() - difference - 1


def grpo_loss(
    logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, advantage: Tensor, mask: Tensor, settings: Settings
) -> Tensor:
    """Equation 3 with a minus before it, as optimizers minimise. All (B, T), `advantage` (B,); returns ().

    J = 1/G Σ_i 1/|o_i| Σ_t { min[ρ_it Â_i, clip(ρ_it, 1-ε, 1+ε) Â_i] - β KL_it },   ρ_it = π_θ/π_old of token t
    """
    a = advantage[:, None]  # an outcome's advantage is that of each of its tokens
    ratio = (logprobs - old_logprobs).exp()  # 1 at the first update of a batch; its gradient is that of log π_θ then
    # The minimum makes the clip one-sided. For Â > 0 there is nothing to gain from a ratio above 1 + ε: the gradient is
    # 0 there. Below 1 - ε the completion has become less likely although it was good, and the gradient stays alive.
    # For Â < 0 it is the other way round.
    gain = torch.minimum(ratio * a, ratio.clamp(1 - settings.epsilon, 1 + settings.epsilon) * a)
    per_token = gain - settings.beta * kl(logprobs, ref_logprobs)  # minus: distance from the reference costs
    per_token = torch.where(mask, per_token, 0.0)  # nothing after the stop token was written by the policy
    # The denominators: |o_i| is the number of tokens of completion i, its stop token included, so every completion
    # weighs the same, and a token of a long one less. (DAPO, arXiv:2503.14476, divides by all tokens of the batch
    # instead.) Then the mean over the completions: 1/G within a group, and over the P prompts the paper's expectation.
    per_completion = per_token.sum(1) / mask.sum(1)
    return -per_completion.mean()


# ---- Algorithm 1 ---------------------------------------------------------------------------------------------------


def train(settings: Settings, seed: int = 0, report: int = 20) -> list[float]:
    """Trains a policy; returns the mean reward of each step, and prints every `report`-th (0: none)."""
    torch.manual_seed(seed)
    policy = Policy()  # line 1: π_θ
    reference = copy.deepcopy(policy).requires_grad_(False)  # line 3: π_ref, which stays as it is
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    history = []
    for step in range(1, settings.steps + 1):  # line 4
        questions = torch.arange(settings.prompts) % 10  # line 5: there are but ten, and a step takes them all
        prompts = questions.repeat_interleave(settings.group_size)[:, None]  # (B, 1), the G rows of a group adjacent
        completions, mask = sample(policy, prompts)  # lines 6 and 7: the old policy is the policy as it is now
        rewards = torch.tensor(  # line 8
            [reward(int(q), o[m].tolist()) for q, o, m in zip(prompts[:, 0], completions, mask, strict=True)]
        )
        advantage = advantages(rewards.view(settings.prompts, settings.group_size)).flatten()  # line 9
        with torch.no_grad():
            old_logprobs = token_logprobs(policy, prompts, completions)
            ref_logprobs = token_logprobs(reference, prompts, completions)
        for _ in range(settings.updates):  # line 10
            logprobs = token_logprobs(policy, prompts, completions)
            loss = grpo_loss(logprobs, old_logprobs, ref_logprobs, advantage, mask, settings)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()  # line 11
        history.append(float(rewards.mean()))
        if report and (step == 1 or step % report == 0):
            distance = kl(old_logprobs, ref_logprobs)[mask].mean()
            print(f"step {step:3d}   reward {history[-1]:.3f}   KL {distance:.3f}   loss {float(loss.detach()):+.4f}")
    return history


if __name__ == "__main__":
    torch.set_num_threads(1)  # for so small a model threads cost more than they bring
    train(Settings())
