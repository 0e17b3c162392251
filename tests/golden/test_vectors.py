"""Numeric cases from other public projects' test suites (`golden/vectors.json` of the shared test data).

Every case is either run here or listed with the reason why it is not; a test holds the two lists to the file.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes.batches import rows_of
from oncurve import ops
from oncurve.advantages import gae
from oncurve.advantages.gae import whiten
from oncurve.batching import token_rewards
from oncurve.components import Component
from oncurve.kl import kl_value
from oncurve.losses import (
    Cispo,
    Clipped,
    Gspo,
    KLPenalty,
    Objective,
    Reinforce,
    SeqMeanTokenMean,
    TokenMean,
    Truncated,
    objective_loss,
    off_policy,
    top_entropy,
)
from oncurve.metrics import Metrics
from oncurve.rewards import Overlong
from oncurve.trainer import KLControl
from oncurve.types import TokenStats

Case = dict[str, Any]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def losses(objective: Objective, logprobs: Tensor, old: Tensor | None, advantages: Tensor) -> Tensor:
    """Token losses of one completion, `(T,)`."""
    mask = torch.ones(1, len(logprobs), dtype=torch.bool)
    return objective(
        TokenStats(logprobs[None]),
        rows_of(mask, old_logprobs=None if old is None else old[None], advantages=advantages[None]),
    ).loss[0]


def reinforce_mean(case: Case) -> Tensor:
    given = case["inputs"]
    return losses(Reinforce(), tensor(given["curr_logprobs"]), None, tensor(given["advantages"])).mean()


def policy_gradient(case: Case) -> Tensor:
    """The weights of rlax's case enter as factors of the advantage: ours are not applied inside the objective."""
    given = case["inputs"]
    logprobs = ops.token_logprobs(tensor(given["logits"]), torch.tensor(given["actions"]))
    advantages = tensor(given["advantages"]) * tensor(given["weights"])
    return torch.stack([losses(Reinforce(), row, None, a).mean() for row, a in zip(logprobs, advantages, strict=True)])


def kl(case: Case) -> Tensor:
    given = case["inputs"]
    return kl_value(case["id"].removeprefix("kl_"), tensor(given["logprobs"]), tensor(given["ref_logprobs"]))


def dual_clip(case: Case) -> Tensor:
    given, clip = case["inputs"], case["params"]["clip"]
    objective = Clipped(clip_low=clip, clip_high=clip, dual_clip=case["params"]["c"])
    stats = [tensor(given[name]) for name in ("logprobs", "old_logprobs", "advantages")]
    return losses(objective, *stats).sum()


def importance_weighted_clipped(case: Case) -> Tensor:
    """With a threshold of 0.8, which the component refuses: equal log-probs would not have the weight 1."""
    given, clip = case["inputs"], case["params"]["clip"]
    current, old, advantages = (tensor(given[n])[None] for n in ("curr_logprobs", "prev_logprobs", "advantages"))
    mask = torch.ones_like(old).bool()
    correction = Truncated.model_construct(threshold=case["params"].get("cap", 1e9))
    weights = correction(old - tensor(given["generation_logprobs"]), mask).used
    batch = rows_of(mask, old_logprobs=old, advantages=advantages).having(policy_weights=weights)
    return objective_loss(Clipped(clip_low=clip, clip_high=clip), TokenStats(current), batch).loss.mean()


def high_entropy(case: Case) -> Tensor:
    """TRL's quantile is the share of tokens that are left out. At least one is kept."""
    mask, share = tensor(case["inputs"]["mask"]).bool(), max(1 - case["params"]["quantile"], 1e-9)
    return top_entropy(tensor(case["inputs"]["entropies"]), mask, share).double()


def off_policy_rows(case: Case) -> Tensor:
    gap = tensor(case["inputs"]["old_minus_new"])
    advantages = tensor(case["inputs"]["advantages"])[:, None].expand_as(gap)
    threshold = case["params"]["threshold"]
    dropped = off_policy(torch.zeros_like(gap), gap, advantages, torch.ones_like(gap).bool(), threshold)
    assert torch.equal(dropped.all(1), dropped.any(1))
    return (~dropped.any(1)).double()


def gspo(case: Case) -> Tensor:
    """The advantages differ between the tokens of one completion: ours is their mean."""
    given, clip = case["inputs"], case["params"]["clip"]
    current, old, advantages = (tensor(given[n]) for n in ("curr_logprobs", "prev_logprobs", "advantages"))
    loss = losses(Gspo(clip_low=clip, clip_high=clip), current, old, advantages).mean()
    if "generation_logprobs" not in given:
        return loss
    weight = (old - tensor(given["generation_logprobs"])).sum().exp()
    return weight.clamp(max=case["params"].get("cap", torch.inf)) * loss


def cispo_sum(case: Case) -> Tensor:
    given, clip = case["inputs"], case["params"]["clip"]
    stats = [tensor(given[name]) for name in ("logprobs", "old_logprobs", "advantages")]
    return losses(Cispo(clip_low=clip, clip_high=clip), *stats).sum()


def cispo_per_token(case: Case) -> Tensor:
    given, params = case["inputs"], case["params"]
    logprobs = tensor(given["logprobs"])
    objective = Cispo(clip_low=params["eps_low"], clip_high=params["eps_high"])
    return losses(objective, logprobs, logprobs - tensor(given["ratios"]).log(), tensor(given["advantages"]))


def masked_nll(case: Case) -> Tensor:
    given = case["inputs"]
    mask = tensor(given["weights"]).bool()[None]
    batch = rows_of(mask, advantages=torch.ones_like(mask, dtype=torch.float64))
    return Reinforce()(TokenStats(tensor(given["logprobs"])[None]), batch).loss.sum() / case["params"]["ce_scale"]


def masked_mean(case: Case) -> Tensor:
    return ops.masked_mean(tensor(case["inputs"]["x"]), tensor(case["inputs"]["mask"]).bool(), dim=1)


def aggregated(aggregation: Component) -> Any:
    def run(case: Case) -> Tensor:
        weights: Tensor = aggregation(rows_of(tensor(case["inputs"]["mask"]).bool()))
        pieces = (weights * tensor(case["inputs"]["loss"])).sum(1).split(case["params"].get("split", [len(weights)]))
        return torch.stack([piece.sum() for piece in pieces]).sum()

    return run


def advantages_of_an_episode(case: Case) -> Tensor:
    """rlax's rows have a discount a token: 0 ends an episode, so a row is cut there; what follows is another one."""
    rows = []
    given = [tensor(case["inputs"][name]) for name in ("r_t", "v_t", "discount_t")]
    for rewards, values, discounts in zip(*given, strict=True):
        pieces, start = [], 0
        ends = [t for t, discount in enumerate(discounts.tolist()) if not discount]
        for end in [*ends, len(rewards) - 1]:
            here = slice(start, end + 1)
            beyond = values[end + 1 : end + 2] if end not in ends else torch.zeros(1)
            r, v = rewards[None, here], values[None, here]
            found, _ = gae(r, v, torch.ones_like(r).bool(), float(discounts.max()), case["params"]["lambda_"], beyond)
            pieces.append(found[0])
            start = end + 1
        rows.append(torch.cat(pieces))
    return torch.stack(rows)


def returns(case: Case) -> Tensor:
    rewards, values = tensor(case["inputs"]["rewards"]), tensor(case["inputs"]["values"])
    mask = torch.ones_like(rewards, dtype=torch.bool)
    return gae(rewards, values, mask, case["params"]["gamma"], case["params"]["lam"])[1]


def whitened(case: Case) -> Tensor:
    """Where the mask is off SkyRL leaves a number, and ours is 0: the case's own is put there."""
    rewards, values, mask = (tensor(case["inputs"][name]) for name in ("rewards", "values", "mask"))
    raw, _ = gae(rewards, values, mask.bool(), case["params"]["gamma"], case["params"]["lam"])
    got = whiten(raw, mask.bool())
    assert got[~mask.bool()].abs().max() == 0
    return torch.where(mask.bool(), got, tensor(case["expected"]))


def nothing_to_whiten(case: Case) -> Tensor:
    rewards, mask = tensor(case["inputs"]["token_rewards"])[None], tensor(case["inputs"]["mask"]).bool()[None]
    return whiten(gae(rewards, torch.zeros_like(rewards), mask, 1.0, 1.0)[0], mask)[0]


def adaptive(case: Case) -> Tensor:
    given = case["inputs"]
    penalty = KLPenalty(where="reward", coef=given["init"], target=given["target"], horizon=given["horizon"])
    return tensor(penalty.steered(given["init"], given["current"], given["n_steps"]))


def kl_rewards(case: Case) -> Tensor:
    given, coef = case["inputs"], case["params"]["kl_coeff"]
    old = tensor(given["logprobs"])
    batch = rows_of(torch.ones_like(old, dtype=torch.bool), old_logprobs=old).having(
        ref_logprobs=tensor(given["ref_logprobs"]), rewards=tensor(given["scores"])
    )
    batch = batch.having(token_rewards=token_rewards(batch))
    rewards = KLControl(KLPenalty(where="reward", coef=coef)).add_kl_to_rewards(batch, None, Metrics()).token_rewards
    assert rewards is not None
    return rewards


def overlong(case: Case) -> Tensor:
    params = case["params"]
    return tensor(Overlong(buffer=params["cache"], max_length=params["max_len"])(case["inputs"]["length"]))


RUN = {
    **dict.fromkeys(("gae_lambda1.0", "gae_lambda0.7"), advantages_of_an_episode),
    **dict.fromkeys(("gae_returns_g0.5_l1", "gae_returns_g1_l0.5", "gae_returns_tt"), returns),
    "gae_masked_whiten": whitened,
    "short_mask_whiten0": nothing_to_whiten,
    "adaptive_kl": adaptive,
    "ppo_kl_rewards": kl_rewards,
    "pg_loss": policy_gradient,
    "reinforce_mean": reinforce_mean,
    **dict.fromkeys(("kl_k1", "kl_k2", "kl_k3"), kl),
    **dict.fromkeys(("tis_token_uncapped", "tis_token_cap0.8"), importance_weighted_clipped),
    **dict.fromkeys(("high_entropy_q0.0", "high_entropy_q1.0"), high_entropy),
    "off_policy_mask": off_policy_rows,
    "dual_clip_sum": dual_clip,
    **dict.fromkeys(("gspo_mean", "gspo_tis_cap0.8", "gspo_is"), gspo),
    "cispo_sum": cispo_sum,
    "cispo_ppo_band": cispo_per_token,
    "masked_mean": masked_mean,
    "agg_token_mean": aggregated(TokenMean()),
    **dict.fromkeys(("agg_seq_mean_token_mean", "agg_excludes_empty"), aggregated(SeqMeanTokenMean())),
    "ce_component": masked_nll,
    "soft_overlong_110": overlong,
}

_SHAPED = [f"cosine_len{case}" for case in ("50_correct1", "0_correct0", "200_correct1")]
_SHAPED += [f"repetition_{number}" for number in (70, 71, 72, 75, 76)]
_SHAPING = "shaping by a cosine of the length or by repeated n-grams is left to a function of the user's"

NOT_RUN = dict.fromkeys(_SHAPED, _SHAPING) | {
    "masked_var": "no objective takes a variance under a mask",
    "kl_k2_clamped": "clamps the value at 10, which takes the pull away from the tokens that need it most",
}


@pytest.fixture(scope="module")
def cases(test_data: Path) -> dict[str, Case]:
    return {case["id"]: case for case in json.loads((test_data / "golden" / "vectors.json").read_text())}


@pytest.mark.parametrize("name", RUN)
def test_vector(name: str, cases: dict[str, Case]) -> None:
    case = cases[name]
    torch.testing.assert_close(RUN[name](case), tensor(case["expected"]), rtol=case["rtol"], atol=case["atol"])


def test_every_case_is_run_or_has_a_reason(cases: dict[str, Case]) -> None:
    assert not set(RUN) & set(NOT_RUN)
    assert set(RUN) | set(NOT_RUN) == set(cases)
    assert len(cases) == 41
