"""The text of the page for users of TRL, next to its table."""

ABOUT = """\
A script changes its import line:

```python
from oncurve.compat.trl import GRPOConfig, GRPOTrainer  # in place of: from trl import GRPOConfig, GRPOTrainer
```

`GRPOConfig` is a dataclass with TRL's fields, so `TrlParser((ScriptArguments, GRPOConfig, ModelConfig))` of TRL's own
scripts is imported from `oncurve.compat.trl` as well, with `get_peft_config` and its relatives.

`print(GRPOTrainer(...).recipe)` shows the run as a recipe of oncurve: every argument with what it became, and the
defaults of TRL that are not those of oncurve.

**What is the same.** Names and defaults of TRL 1.16, its normalisers (`grpo`, `bnpo`, `dr_grpo`, `dapo`, `cispo`,
`sapo`), 1e-4 next to a standard deviation, the bias-corrected KL term, batch sizes in completions. Reward functions are
called in the training process with all that TRL passes, sync or async; None does not apply, and an exception ends the
run. The functions of `trl.rewards` are in `oncurve.compat.trl` under their names. Callbacks are transformers'
`TrainerCallback`, with its state and control.

**What differs.**

* A step of oncurve is one generation with all its updates, and TRL's steps are updates: settings in steps are divided
  by the updates of a generation. `on_step_begin` and `on_step_end` are called once per generation, and
  `state.global_step` grows by its updates.
* An update is of whole groups. TRL shuffles the completions of a generation, and an update may have parts of groups.
* A completion to which no reward applies is left out of the loss. In TRL its advantage is 0, and its tokens count in
  the mean. A step in which no reward applies to any completion is an error.
* The run is in `output_dir`, or in `output_dir-2` and so on where that is not empty: nothing is overwritten.
  `train(resume_from_checkpoint=True)` continues the newest of these, exactly. Checkpoints are not folders of models:
  `oncurve export DIR --step 100` writes one. The model is in `model/` of the folder; `save_model()` writes it into the
  folder itself, too.
* A subclass of `GRPOTrainer` that replaces a method of TRL's loop (`compute_loss`, `log`, `get_train_dataloader`) is
  refused by name: oncurve's loop would not call it. Methods of its own are its own.
* TRL's entropy bonus is a mean over tokens with every loss. Here it is weighed as the loss is, so `entropy_coef` takes
  `loss_type` `dapo`, `bnpo` or `cispo`, and `top_entropy_quantile` 1.
* TRL adds the load-balancing loss of a mixture of experts by default. It is not available: write
  `router_aux_loss_coef=0.0`.
* Over an adapter `trainer.model` is a `PeftModel`, and of a `PeftModel` that is given the adapter must be new. Its
  factors A begin by `seed`.
* With several data sets `evaluate()` and `on_evaluate` give one table, whose names begin with `eval_NAME_`;
  `eval_runtime` is of all sets together.
* With a warm-up the first update already moves the weights; in transformers its learning rate is 0.
* `evaluate()` has TRL's metrics of rewards and lengths, and none of a loss (`eval_loss`, `eval_entropy`,
  `eval_clip_ratio/...`): an evaluation makes no loss. `clip_ratio/low_min` and `high_max` are
  logged where no token is clipped, as 0.
* `ModelConfig.lora_dropout` is 0.0, and TRL's is 0.05: with dropout the learner's log-probs are not the sampler's.
* The order of the prompts and the sampled tokens follow from `seed` by oncurve's counter-based random numbers, so a
  run is not TRL's token by token.

**What is better left out.** `vllm_*`: completions are sampled in the training process. `log_completions`: all are in
`rollouts/`, and the report shows them. `dataloader_*`, `torch_compile`, `use_liger_kernel`: without meaning here.
`top_p`, `top_k`, `min_p` and `repetition_penalty` are refused: the learner trains on the whole distribution that is
sampled from.

**From TRL's earlier trainers.** TRL removed `PPOTrainer` and `PRMTrainer`. A process reward model is trained by
`oncurve reward-model train` with `reward_model.kind = "process"`, and used by `kind = "process_model"`. The preset
`ppo` has PPO's critic, advantages and losses; this recipe has the numbers of TRL's `PPOConfig`:

```toml
extends = "ppo"

[model]
path = "my-sft-model"        # sft_model_path

[data]
path = "prompts.jsonl"
prompts_per_step = 8         # per_device_train_batch_size times gradient_accumulation_steps

[rollout]
group_size = 1
max_new_tokens = 53          # response_length
temperature = 0.7

[learner]
learning_rate = 3e-6
ppo_epochs = 4               # num_ppo_epochs
minibatches = 1              # num_mini_batches divided by gradient_accumulation_steps
max_grad_norm = 0.0          # PPOTrainer did not clip gradients

[critic]
learning_rate = 3e-6
clip = 0.2                   # cliprange_value

[kl]
coef = 0.05                  # kl_coef

[aggregation]
kind = "token-mean"

[[rewards]]
kind = "model"
path = "my-reward-model"     # reward_model_path

[[rewards]]
kind = "length_cap"          # missing_eos_penalty, which was off
max_length = 52              # response_length - 1
penalty = -1.0
```

`cliprange` is `objective.clip_low` and `clip_high`, `gamma` and `lam` are `advantage.gamma` and `lam`, and
`total_episodes` is `run.steps` times `data.prompts_per_step`. The critic begins as the policy with a value head of 0,
and the reference is the policy before the first update.
"""
