"""Numeric cases from other public projects' test suites (`golden/vectors.json` of the shared test data).

Every case is either run here or listed with the reason why it is not; a test holds the two lists to the file.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oncurve import ops
from oncurve.advantages import gae, whiten
from oncurve.kl import kl_value
from oncurve.losses import Clipped, KLPenalty, Objective, Reinforce, SeqMeanTokenMean, TokenMean
from oncurve.metrics import Metrics
from oncurve.spec import Component
from oncurve.trainer import KLControl
from oncurve.types import Streams, TrainBatch

Case = dict[str, Any]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def batch_of(mask: Tensor, old: Tensor | None = None, advantages: Tensor | None = None) -> TrainBatch:
    rows, width = mask.shape
    return TrainBatch(
        completion_ids=torch.zeros(rows, width, dtype=torch.int64),
        lengths=torch.full((rows,), width),
        loss_mask=mask,
        valid=torch.ones(rows, dtype=torch.bool),
        group_ids=torch.zeros(rows, dtype=torch.int64),
        prompts=(torch.tensor([0]),),
        rewards=torch.zeros(rows, dtype=torch.float64),
        old_logprobs=old,
        advantages=advantages,
    )


def losses(objective: Objective, logprobs: Tensor, old: Tensor | None, advantages: Tensor) -> Tensor:
    """Token losses of one completion, `(T,)`."""
    mask = torch.ones(1, len(logprobs), dtype=torch.bool)
    return objective(
        Streams(logprobs[None]), batch_of(mask, None if old is None else old[None], advantages[None])
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
    streams = [tensor(given[name]) for name in ("logprobs", "old_logprobs", "advantages")]
    return losses(objective, *streams).sum()


def importance_weighted_clipped(case: Case) -> Tensor:
    """Sampler/learner weights are detached factors of the token loss, applied here from outside the objective."""
    given, clip = case["inputs"], case["params"]["clip"]
    current, old, advantages = (tensor(given[n]) for n in ("curr_logprobs", "prev_logprobs", "advantages"))
    weights = ops.clamped_ratio(old - tensor(given["generation_logprobs"]))
    if "cap" in case["params"]:
        weights = weights.clamp(max=case["params"]["cap"])
    return (weights * losses(Clipped(clip_low=clip, clip_high=clip), current, old, advantages)).mean()


def masked_nll(case: Case) -> Tensor:
    given = case["inputs"]
    mask = tensor(given["weights"]).bool()[None]
    batch = batch_of(mask, advantages=torch.ones_like(mask, dtype=torch.float64))
    return Reinforce()(Streams(tensor(given["logprobs"])[None]), batch).loss.sum() / case["params"]["ce_scale"]


def masked_mean(case: Case) -> Tensor:
    return ops.masked_mean(tensor(case["inputs"]["x"]), tensor(case["inputs"]["mask"]), dim=1)


def masked_var(case: Case) -> Tensor:
    return ops.masked_var(tensor(case["inputs"]["x"]), tensor(case["inputs"]["mask"]))


def aggregated(aggregation: Component) -> Any:
    def run(case: Case) -> Tensor:
        weights: Tensor = aggregation(batch_of(tensor(case["inputs"]["mask"]).bool()))
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
    batch = batch_of(torch.ones_like(old, dtype=torch.bool), old).having(
        ref_logprobs=tensor(given["ref_logprobs"]), rewards=tensor(given["scores"])
    )
    rewards = KLControl(KLPenalty(where="reward", coef=coef)).penalise(batch, None, Metrics()).token_rewards
    assert rewards is not None
    return rewards


RUN = {
    "gae_lambda1.0": advantages_of_an_episode,
    "gae_lambda0.7": advantages_of_an_episode,
    "gae_returns_g0.5_l1": returns,
    "gae_returns_g1_l0.5": returns,
    "gae_returns_tt": returns,
    "gae_masked_whiten": whitened,
    "short_mask_whiten0": nothing_to_whiten,
    "adaptive_kl": adaptive,
    "ppo_kl_rewards": kl_rewards,
    "pg_loss": policy_gradient,
    "reinforce_mean": reinforce_mean,
    "kl_k1": kl,
    "kl_k2": kl,
    "kl_k3": kl,
    "tis_token_uncapped": importance_weighted_clipped,
    "tis_token_cap0.8": importance_weighted_clipped,
    "dual_clip_sum": dual_clip,
    "masked_mean": masked_mean,
    "masked_var": masked_var,
    "agg_token_mean": aggregated(TokenMean()),
    "agg_seq_mean_token_mean": aggregated(SeqMeanTokenMean()),
    "agg_excludes_empty": aggregated(SeqMeanTokenMean()),
    "ce_component": masked_nll,
}

_GSPO = "the length-normalised sequence ratio (gspo) is not among the objectives yet"
_CISPO = "cispo is not among the objectives yet"
_SHAPING = "length and repetition shaping are not among the rewards yet"
_ENTROPY = "training only the tokens of highest entropy is not offered yet"

NOT_RUN = {
    "gspo_mean": _GSPO,
    "gspo_tis_cap0.8": _GSPO,
    "gspo_is": _GSPO,
    "cispo_sum": _CISPO,
    "cispo_ppo_band": _CISPO,
    "soft_overlong_110": _SHAPING,
    "cosine_len50_correct1": _SHAPING,
    "cosine_len0_correct0": _SHAPING,
    "cosine_len200_correct1": _SHAPING,
    "repetition_70": _SHAPING,
    "repetition_71": _SHAPING,
    "repetition_72": _SHAPING,
    "repetition_75": _SHAPING,
    "repetition_76": _SHAPING,
    "high_entropy_q0.0": _ENTROPY,
    "high_entropy_q1.0": _ENTROPY,
    "kl_k2_clamped": "clamps the value at 10, which takes the pull away from the tokens that need it most",
    "off_policy_mask": "dropping completions that are too far off-policy is not offered yet",
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
