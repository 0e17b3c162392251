"""The table of TRL's PPO, as of 0.29, the last version that had it, and the page's text about it."""

from __future__ import annotations

from oncurve.compat.dialect import Dialect
from oncurve.compat.trl.dialect import OLDER_KEYS
from oncurve.compat.trl.ppo_keys import PPO_KEYS, PPO_TRAINER_KEYS
from oncurve.compat.trl.run_keys import RUN_KEYS
from oncurve.compat.trl.unused_keys import IDLE_KEYS, REFUSED_KEYS

_NAMES = (
    "steps_per_generation generation_batch_size num_generations num_iterations max_completion_length "
    "generation_kwargs chat_template_kwargs shuffle_dataset model_init_kwargs trust_remote_code "
    "num_generations_eval disable_dropout pad_to_multiple_of cache_implementation "
    "use_transformers_continuous_batching use_transformers_paged transformers_continuous_batching_config "
    "max_tool_calling_iterations log_completions num_completions_to_print log_unique_prompts log_multimodal top_p "
    "top_k min_p repetition_penalty router_aux_loss_coef cast_lm_head_to_fp32 log_completions_hub_repo use_vllm "
    "max_prompt_length"
)
GRPO_ALONE = frozenset(_NAMES.split())
"""Fields of `GRPOConfig` that transformers' `TrainingArguments` lacks, next to those of vLLM."""

_OWN = GRPO_ALONE | {key.theirs for key in PPO_KEYS}
COMMON_KEYS = tuple(
    key for key in (*RUN_KEYS, *IDLE_KEYS, *REFUSED_KEYS) if key.theirs not in _OWN and "vllm" not in key.theirs
)
PPO_CONFIG_KEYS = (
    next(key for key in COMMON_KEYS if key.theirs == "output_dir"),
    *PPO_KEYS,
    *(key for key in COMMON_KEYS if key.theirs != "output_dir"),
)
"""The fields of `PPOConfig`."""

PPO_OLDER_KEYS = tuple(key for key in OLDER_KEYS if key.theirs not in GRPO_ALONE)

DIALECT = Dialect("TRL PPO", "0.29", (*PPO_CONFIG_KEYS, *PPO_OLDER_KEYS, *PPO_TRAINER_KEYS))

ABOUT = """\
TRL's PPO trainer was removed in 2026. A script for it changes its import line:

```python
from oncurve.compat.trl import PPOConfig, PPOTrainer  # in place of: from trl.experimental.ppo import ...
```

**What is the same.** Names and defaults of TRL 0.29; one completion per prompt, a critic with a network of its own,
generalised advantages whitened over the batch, the KL penalty k1 in the reward, clipped objective and value loss, the
sizes of batches and updates, gradients that are not clipped. `state.log_history` has a line per batch with TRL's names:
`objective/kl`, `objective/entropy`, `objective/non_score_reward`, `objective/scores`, `objective/rlhf_reward`,
`policy/clipfrac_avg`, `policy/entropy_avg`, `loss/policy_avg`, `loss/value_avg`, `val/clipfrac_avg`, `val/ratio`,
`val/num_eos_tokens`, `lr` and `episode`.

**What differs.**

* The critic begins as the policy, with a value head of 0, and the reference is the policy as it begins: a `value_model`
  or `ref_model` with other weights is refused. Of a `value_model` the score head is not used.
* The reward model scores text, with its own tokenizer: prompt, completion and its end token. One in memory must have
  the weights of its files, which are read again.
* Completions end at the model's own end tokens; without a stop token TRL goes on after them.
* The score counts at the last token. TRL adds it one place later, where the critic's value counts once more.
* TRL logs means over padding, too (`policy/entropy_avg`, `val/ratio`). `policy/approxkl_avg` and `val/ratio_var` are
  left out: oncurve estimates that KL by another formula ([`policy/kl_old`](metrics.md#policykl_old)).
* Every batch has the same number of updates. In TRL accelerate makes one after every piece of
  `per_device_train_batch_size` in the last batch of an epoch, whatever `gradient_accumulation_steps` says.
* `lr` is that of a batch's last update; TRL's schedule moves once per batch.
* `train()` takes `resume_from_checkpoint`, which TRL's PPO did not.

**What is better left out.** `num_sample_generations` and `local_rollout_forward_batch_size` have no meaning here, and
`world_size` and the sizes that TRL computes are not read. The preset `ppo` is a recipe's way to the same algorithm.
"""
