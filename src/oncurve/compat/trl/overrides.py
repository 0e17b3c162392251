"""The methods of TRL's `GRPOTrainer` that its loop calls and oncurve's does not: a subclass that has one is refused."""

from __future__ import annotations

from transformers import Trainer

from oncurve.base.errors import ConfigError

OWN = ("evaluate", "get_high_entropy_mask", "get_off_policy_mask", "save_model")
"""Methods that `GRPOTrainer` has here for its user. TRL's loop calls them, too."""

FREE = (
    "add_callback",
    "end",
    "log_metrics",
    "push_to_hub",
    "remove_callback",
    "save_metrics",
    "save_state",
    "train",
)
"""Methods of transformers' `Trainer` that only its user calls."""

OF_GRPO = """
_calculate_rewards _compute_loss _generate _generate_and_score_completions _generate_single_turn
_get_per_token_logps_and_entropies _get_tool_suffix_ids _log_completion_extra _log_metric _tokenize_prompts
_tool_call_loop get_gamma_weights get_high_entropy_mask get_off_policy_mask loss_is_scaled_for_ga
"""
"""The methods that TRL 1.16's `GRPOTrainer` adds to transformers' `Trainer`."""

NOT_CALLED = {name for name in dir(Trainer) if not name.startswith("__")}.difference(FREE).union(OF_GRPO.split())


def refuse_overrides(trainer: type, *assigned: str) -> None:
    """Raise ConfigError: a subclass of `GRPOTrainer`, or an assignment, replaces methods that are not called here."""
    found = set(assigned)
    for each in trainer.__mro__:
        found |= NOT_CALLED.intersection(vars(each)).difference(OWN if each.__module__.startswith("oncurve.") else ())
    if found:
        raise ConfigError(
            f"{trainer.__name__}: oncurve's loop does not call {', '.join(sorted(found))}, so training would go on "
            "without what replaces it; remove it. A loss, an advantage or a rollout engine of your own is a component: "
            "docs/extending.md"
        )
