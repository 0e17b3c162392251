"""The flags of OpenRLHF 0.11's `train_ppo_ray` as data, and the names that they had before 0.10."""

from __future__ import annotations

from oncurve.compat.dialect import Key

Types = tuple[type, ...]
FLAG: Types = (bool,)
WHOLE: Types = (int,)
NUMBER: Types = (float,)
TEXT: Types = (str,)
PAIR: Types = (list,)
LIST: Types = (list, str)
ENGINE = (
    "completions are sampled with the weights that are trained, in this process or, with cluster.rollout_workers, in "
    'others; cluster.engine = "vllm" has vLLM'
)
ONE_MACHINE = (
    "cluster.learner_ranks says how many processes share the updates, cluster.sharding whether they divide the model, "
    "and cluster.kind on which machines"
)
DEEPSPEED = "there is no DeepSpeed; learner.masters and learner.moments say how weights and moments are kept"
FOLDER = "the run's folder is --out, and its model is in Hugging Face form"
TEXTS = "models read text only; leave it out"
MUON = "the optimizer is AdamW; leave it out"
AS_ACTOR = "the critic's optimizer has the actor's settings, but for its learning rate"
LAYOUT = "completions are packed without padding in any case"

WITHOUT_MEANING: dict[str, tuple[Types, str]] = {
    name: (types, reason)
    for types, names, reason in (
        (WHOLE, "ref.num_nodes ref.num_gpus_per_node reward.num_nodes reward.num_gpus_per_node actor.num_nodes "
         "actor.num_gpus_per_node critic.num_nodes critic.num_gpus_per_node local_rank ds.zero_stage ds.zpg "
         "ds.tensor_parallel_size ds.ring_attn_size ds.ring_attn_head_stride", ONE_MACHINE),
        (FLAG, "train.colocate_actor_ref train.colocate_critic_reward train.colocate_all ref.offload reward.offload "
         "ref_reward_offload actor_init_on_gpu ds.overlap_comm ds.deepcompile", ONE_MACHINE),
        (WHOLE, "vllm.num_engines vllm.tensor_parallel_size rollout.vllm_generate_batch_size rollout.micro_batch_size "
         "rollout.max_tokens_per_gpu rollout_tasks_per_gpu", ENGINE),
        (FLAG, "vllm.sync_with_ray vllm.enable_prefix_caching vllm.enforce_eager vllm.enable_sleep ds.enable_sleep "
         "fsdp2_enable_sleep", ENGINE),
        (TEXT, "vllm.sync_backend", ENGINE),
        (NUMBER, "vllm.gpu_memory_utilization", ENGINE),
        (FLAG, "ds.adam_offload ds.use_universal_ckpt ds.use_liger_kernel actor.gradient_checkpointing_reentrant",
            DEEPSPEED),
        (TEXT, "ds.attn_implementation ds.experts_implementation ds.grad_accum_dtype", DEEPSPEED),
        (FLAG, "ds.packing_samples", LAYOUT),
        (WHOLE, "train.micro_batch_size",
            "the result does not depend on it; learner.tokens_per_micro_batch bounds memory"),
        (TEXT, "ckpt.output_dir ckpt.path", FOLDER),
        (FLAG, "ckpt.save_hf ckpt.disable_ds critic.save_value_network", FOLDER),
        (NUMBER, "ckpt.max_mem", "checkpoint.keep bounds the number of checkpoints"),
        (FLAG, "ckpt.load_enable", "a run goes on by `oncurve resume DIR`, or with --out DIR --resume-if-there"),
        (WHOLE, "logger.logging_steps data.dataloader_num_workers",
            "every step is in metrics.jsonl; rows are read in one process"),
        (FLAG, "data.disable_fast_tokenizer perf", "the tokenizer is the model's"),
        (FLAG, "train.full_determinism_enable", "a run is a function of its settings and run.seed in any case"),
        (TEXT, "ds.value_head_prefix", "the critic begins as the policy, with a new head"),
        (NUMBER, "critic.adam.eps critic.adam.weight_decay critic.lr_warmup_ratio critic.min_lr_ratio critic.max_norm",
            AS_ACTOR),
        (TEXT, "critic.lr_scheduler", AS_ACTOR),
        (PAIR, "critic.adam.betas", AS_ACTOR),
        (NUMBER, "actor.muon.lr actor.muon.momentum critic.muon.lr critic.muon.momentum",
            "it is for --actor.optim muon only"),
        (WHOLE, "actor.muon.ns_steps critic.muon.ns_steps", "it is for --actor.optim muon only"),
        (FLAG, "actor.muon.nesterov actor.muon.no_nesterov critic.muon.nesterov critic.muon.no_nesterov",
         "it is for --actor.optim muon only"),
        (TEXT, "logger.wandb.group", "tracking.tags are the labels of a run"),
        (NUMBER, "train.ema_beta", "it is for --train.enable_ema only"),
        (TEXT, "data.image_key", "it is for images only"),
        (FLAG, "actor.freeze_visual_encoder", "it is for images only"),
        (FLAG, "bf16", "model.dtype is bfloat16 where the processor or GPU has it"),
        (WHOLE, "train.async_queue_size", "it is for --train.async_enable only"),
    )
    for name in names.split()
}  # fmt: skip

REFUSED: tuple[Key, ...] = tuple(
    Key(name, (), reason, refused=True, harmless=harmless, types=types)
    for name, types, harmless, reason in (
        ("rollout.top_p", NUMBER, (1.0, 1), "sampling is not cut off: the learner trains on the whole distribution"),
        ("train.async_enable", FLAG, (False,), "a step is trained on completions of its own policy; leave it out"),
        ("train.partial_rollout_enable", FLAG, (False,), "completions are of one policy; leave it out"),
        ("train.agent_func_path", TEXT, (),
            "completions are one turn; score them by a function, --reward.remote_url f.py"),
        ("train.enable_ema", FLAG, (False,),
            "no average of weights is kept; checkpoint.best keeps the best checkpoint"),
        ("reward.clip_range", PAIR, ([-10.0, 10.0],), "rewards are not clipped; clip them in the reward's function"),
        ("reward.stop_properly_penalty_coef", NUMBER, (),
            "filter.mask_truncated, or [[rewards]] kind = \"length_cap\""),
        ("actor.optim", TEXT, ("adam",), MUON),
        ("critic.optim", TEXT, ("adam",), MUON),
        ("critic.model_name_or_path", TEXT, (), "the critic begins as the policy; leave it out"),
        ("actor.aux_loss_coef", NUMBER, (0, 0.0), "there is no load-balancing loss; leave it out"),
        ("ptx_coef", NUMBER, (0, 0.0, 0.05), "there is no pretraining loss; leave it out"),
        ("data.max_images_per_prompt", WHOLE, (0,), TEXTS),
        ("use_ms", FLAG, (False,), "models are folders or ids of the Hugging Face hub; download it first"),
        ("algo.advantage.is_correction_gating", TEXT, ("ratio",), "the correction reads importance ratios"),
        ("algo.dynamic_filtering_range", PAIR, ([0.0, 1.0],), "a group counts if it has right and wrong completions"),
        ("algo.advantage.no_std_norm", FLAG, (False,),
            "REINFORCE++ whitens; estimator dr_grpo subtracts the mean only"),
    )
)  # fmt: skip

RENAMED = {
    "pretrain": "actor.model_name_or_path", "reward_pretrain": "reward.model_name_or_path",
    "critic_pretrain": "critic.model_name_or_path", "remote_rm_url": "reward.remote_url",
    "agent_func_path": "train.agent_func_path", "advantage_estimator": "algo.advantage.estimator",
    "enable_vllm_is_correction": "algo.advantage.is_correction_enable",
    "vllm_enable_is_correction": "algo.advantage.is_correction_enable",
    "vllm_is_correction_type": "algo.advantage.is_correction_type",
    "vllm_is_truncated_threshold": "algo.advantage.is_correction_threshold",
    "gamma": "algo.advantage.gamma", "lambd": "algo.advantage.lambd",
        "no_advantage_std_norm": "algo.advantage.no_std_norm",
    "init_kl_coef": "algo.kl.init_coef", "use_kl_loss": "algo.kl.use_loss", "kl_estimator": "algo.kl.estimator",
    "kl_target": "algo.kl.target", "kl_horizon": "algo.kl.horizon",
    "dynamic_filtering": "algo.dynamic_filtering_enable",
        "dynamic_filtering_reward_range": "algo.dynamic_filtering_range",
    "actor_learning_rate": "actor.adam.lr", "critic_learning_rate": "critic.adam.lr", "adam_betas": "actor.adam.betas",
    "l2": "actor.adam.weight_decay", "lr_scheduler": "actor.lr_scheduler", "lr_warmup_ratio": "actor.lr_warmup_ratio",
    "max_norm": "actor.max_norm", "eps_clip": "actor.eps_clip", "eps_clip_low_high": "actor.eps_clip_low_high",
    "dual_clip": "actor.dual_clip", "value_clip": "critic.value_clip", "policy_loss_type": "actor.policy_loss_type",
    "entropy_loss_coef": "actor.entropy_coef", "aux_loss_coef": "actor.aux_loss_coef",
    "freezing_actor_steps": "critic.freezing_steps", "save_value_network": "critic.save_value_network",
    "gradient_checkpointing": "actor.gradient_checkpointing_enable",
    "gradient_checkpointing_use_reentrant": "actor.gradient_checkpointing_reentrant",
    "n_samples_per_prompt": "rollout.n_samples_per_prompt", "rollout_batch_size": "rollout.batch_size",
    "micro_rollout_batch_size": "rollout.micro_batch_size",
        "vllm_generate_batch_size": "rollout.vllm_generate_batch_size",
    "rollout_max_tokens_per_gpu": "rollout.max_tokens_per_gpu", "generate_max_len": "rollout.max_new_tokens",
    "temperature": "rollout.temperature", "top_p": "rollout.top_p", "max_len": "data.max_len",
    "train_batch_size": "train.batch_size", "micro_train_batch_size": "train.micro_batch_size",
    "max_epochs": "train.max_epochs", "num_episodes": "train.num_episodes", "seed": "train.seed",
    "train_max_tokens_per_gpu": "train.max_tokens_per_gpu", "use_dynamic_batch": "train.dynamic_batch_enable",
    "full_determinism": "train.full_determinism_enable", "async_train": "train.async_enable",
    "async_queue_size": "train.async_queue_size", "enable_ema": "train.enable_ema", "ema_beta": "train.ema_beta",
    "colocate_actor_ref": "train.colocate_actor_ref", "colocate_critic_reward": "train.colocate_critic_reward",
    "colocate_all_models": "train.colocate_all", "prompt_data": "data.prompt_dataset",
    "prompt_data_probs": "data.prompt_probs", "prompt_split": "data.prompt_split", "input_key": "data.input_key",
    "label_key": "data.label_key", "input_template": "data.input_template",
    "apply_chat_template": "data.apply_chat_template", "max_samples": "data.max_samples",
    "disable_fast_tokenizer": "data.disable_fast_tokenizer", "eval_dataset": "eval.dataset", "eval_split": "eval.split",
    "eval_steps": "eval.steps", "eval_temperature": "eval.temperature",
    "eval_n_samples_per_prompt": "eval.n_samples_per_prompt", "save_path": "ckpt.output_dir", "ckpt_path": "ckpt.path",
    "save_steps": "ckpt.save_steps", "save_hf_ckpt": "ckpt.save_hf", "disable_ds_ckpt": "ckpt.disable_ds",
    "max_ckpt_num": "ckpt.max_num", "max_ckpt_mem": "ckpt.max_mem", "load_checkpoint": "ckpt.load_enable",
    "use_ds_universal_ckpt": "ds.use_universal_ckpt", "logging_steps": "logger.logging_steps",
    "use_wandb": "logger.wandb.key", "wandb_org": "logger.wandb.org", "wandb_group": "logger.wandb.group",
    "wandb_project": "logger.wandb.project", "wandb_run_name": "logger.wandb.run_name",
    "use_tensorboard": "logger.tensorboard_dir", "normalize_reward": "reward.normalize_enable",
    "reward_clip_range": "reward.clip_range", "overlong_buffer_len": "reward.overlong_buffer_len",
    "overlong_penalty_factor": "reward.overlong_penalty_factor", "enable_prefix_caching": "vllm.enable_prefix_caching",
    "enforce_eager": "vllm.enforce_eager", "deepspeed_enable_sleep": "ds.enable_sleep", "param_dtype": "ds.param_dtype",
    "ring_head_stride": "ds.ring_attn_head_stride", "ds_tensor_parallel_size": "ds.tensor_parallel_size",
    "target_modules": "ds.lora.target_modules", "lora_rank": "ds.lora.rank", "lora_alpha": "ds.lora.alpha",
    "lora_dropout": "ds.lora.dropout",
    **{f"{role}_{name}": f"{role}.{name}" for role in ("ref", "reward", "actor", "critic")
       for name in ("num_nodes", "num_gpus_per_node")},
    **{f"vllm_{name}": f"vllm.{name}" for name in
       ("num_engines", "tensor_parallel_size", "sync_backend", "sync_with_ray", "enable_sleep",
           "gpu_memory_utilization")},
    **{name: f"ds.{name}" for name in
       ("zero_stage", "deepcompile", "zpg", "adam_offload", "attn_implementation", "use_liger_kernel",
           "grad_accum_dtype",
        "overlap_comm", "packing_samples", "load_in_4bit", "ring_attn_size", "value_head_prefix")},
}  # fmt: skip
"""The flat names of releases before 0.10, without `--`, to those of 0.11."""
