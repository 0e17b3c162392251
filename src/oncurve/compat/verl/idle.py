"""verl's settings without meaning here, each with its reason: whole sections, whatever stands in them, and single names
of sections of which the rest has a meaning.

A name that a version of verl adds to a section of its workers is no error. Covered: the configurations of verl 0.2 to
0.9. What changes numbers in one of these sections is a row of its own, which is refused.
"""

from __future__ import annotations

from oncurve.compat.dialect import Key
from oncurve.compat.verl.rows import ACTOR, MODEL, REF, ROLLOUT, idle, refused, sections

OTHER_OPTIMIZERS = """
weight_decay_incr_style lr_wsd_decay_style lr_wsd_decay_steps use_checkpoint_opt_param_scheduler
use_precision_aware_optimizer main_grads_dtype exp_avg_dtype exp_avg_sq_dtype use_layer_wise_distributed_optimizer
muon_momentum muon_nesterov muon_split_qkv muon_scale_mode muon_coefficient_type muon_num_ns_steps muon_tp_mode
muon_fp32_matmul_prec muon_extra_scale_factor muon_scalar_optimizer muon_match_adamw_update_rms
override_optimizer_config.optimizer_offload_fraction override_optimizer_config.overlap_cpu_optimizer_d2h_h2d
override_optimizer_config.use_precision_aware_optimizer override_optimizer_config.optimizer_cpu_offload
override_optimizer_config.main_grads_dtype override_optimizer_config.main_params_dtype
override_optimizer_config.exp_avg_dtype override_optimizer_config.exp_avg_sq_dtype
override_optimizer_config.fp8_recipe override_optimizer_config.overlap_param_gather
override_optimizer_config.overlap_param_gather_with_optimizer_step override_optimizer_config.overlap_grad_reduce
"""

ENGINES = """
name mode nnodes n_gpus_per_node full_determinism seed dtype gpu_memory_utilization enforce_eager free_cache_engine
cudagraph_capture_sizes tensor_model_parallel_size data_parallel_size expert_parallel_size pipeline_model_parallel_size
max_num_batched_tokens max_model_len enable_chunked_prefill enable_prefix_caching logprobs_mode scheduling_policy
load_format layered_summon disable_log_stats multi_stage_wake_up router_config_path calculate_log_probs
skip_tokenizer_init enable_rollout_routing_replay moe_load_balance_metrics_interval quantization limit_images
quantization_config_file swap_space use_fire_sampling skip_dump_dir update_weights_bucket_megabytes micro_batch_size
"""
KERNELS = "use_shm enable_activation_offload use_remove_padding use_liger use_fused_kernels"
ADAPTERS = """
merge dropout_position lora_A_init_method lora_B_init_method a2a_experimental dtype freeze_vision_model
freeze_vision_projection freeze_language_model
"""
MEMORY = """
strategy use_torch_compile ulysses_sequence_parallel_size entropy_from_logits_with_chunking entropy_checkpointing
entropy_from_logits_chunk_size pad_to_length
"""
LOG_PROBS = """
log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
"""
MACHINES = "num_workers enable_resource_pool n_gpus_per_node nnodes"
REWARDS_OF_OLD = """
strategy micro_batch_size micro_batch_size_per_gpu max_length use_dynamic_bsz forward_max_token_len_per_gpu
ulysses_sequence_parallel_size launch_reward_fn_async reward_loop_class_name use_reward_loop nccl_timeout param_offload
model.use_remove_padding model.use_fused_kernels model.use_shm
"""
CRITICS_BATCHES = """
ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu forward_micro_batch_size
forward_max_token_len_per_gpu forward_micro_batch_size_per_gpu
"""
CRITICS_MODEL = """
trust_remote_code custom_chat_template external_lib hf_config_path enable_gradient_checkpointing
lora_alpha target_modules exclude_modules
"""

RANKS = (
    "how verl's workers hold and divide the model; here cluster.learner_ranks says how many processes share the "
    'updates, cluster.sharding = "fsdp" divides the model among them, cluster.offload moves it to the hosts\' memory, '
    "and model.dtype is the weights' type"
)
ENGINE = (
    "the rollout engine of verl; here the run's process samples, or the processes of cluster.rollout_workers, or, with "
    'cluster.engine = "vllm", vLLM servers'
)
REWARD_MODEL = "the reward model runs in the run's process; [[rewards]] device says where"
TOKENS = "in tokens, by the policy's ppo_max_token_len_per_gpu; the result does not depend on it"
CLASS = "a class of verl"
KERNEL = "how verl computes; oncurve packs rows and fuses the head whatever is said"
PROFILED = "oncurve has no profiler of verl's; each step's seconds are in metrics.jsonl"
THE_POLICYS = "the critic begins as the policy, with its settings"
OPTIMIZER = "of Megatron's and other libraries' optimizers; oncurve has AdamW, whose memory is learner.moments"
SAVED = "a checkpoint has all that an exact resume needs"
OFF = "only read with its `enable`, which is refused"

WORKERS = ("fsdp", "fsdp_config", "megatron", "veomni", "torchtitan", "automodel", "router_replay")
ROOMS = (ACTOR, REF, "critic")

CLASSES = (
    f"{ACTOR} {ACTOR}.optim {ACTOR}.policy_loss {REF} {ROLLOUT} {ROLLOUT}.val_kwargs {MODEL} critic.optim critic "
    "critic.model reward reward.reward_manager reward.reward_manager.module reward.reward_model algorithm "
    "algorithm.filter_groups algorithm.kl_ctrl algorithm.pf_ppo skip"
).split()

KEYS: tuple[Key, ...] = (
    *(Key(f"{section}._target_", (), CLASS) for section in CLASSES),
    *sections("ray_kwargs ray_init hydra transfer_queue", "the workers of verl, which oncurve has none of"),
    *(key for room in ROOMS for key in sections(" ".join(f"{room}.{each}" for each in WORKERS), RANKS)),
    *sections("critic.model.fsdp_config", RANKS),
    *idle(ACTOR, MEMORY, RANKS),
    *idle(REF, f"{MEMORY} param_offload", RANKS),
    *idle("critic", "strategy ulysses_sequence_parallel_size nccl_timeout", RANKS),
    *idle("actor_rollout_ref", "hybrid_engine nccl_timeout", RANKS),
    *(refused(f"{room}.load_weight", "a model is trained from its weights; leave it out", True)
      for room in (*ROOMS, "reward_model")),
    *(refused(f"{room}.megatron.override_transformer_config.{name}", why, 0, 0.0, None)
      for room in (ACTOR, "critic") for name, why in (
          ("moe_aux_loss_coeff", "there is no load-balancing loss; set it to 0"),
          ("moe_z_loss_coeff", "there is no loss on the router's logits; set it to 0"),
          ("attention_dropout", "with dropout the learner's log-probs are not the sampler's; set it to 0"),
          ("hidden_dropout", "with dropout the learner's log-probs are not the sampler's; set it to 0"))),
    *(refused(f"{room}.qat.enable", "weights are trained as they are; set it to False", False)
      for room in (ACTOR, f"{ACTOR}.fsdp_config", f"{ACTOR}.megatron", "critic.fsdp", "critic.megatron",
                   "critic.model.fsdp_config")),
    *sections(f"{ACTOR}.qat", OFF),
    *sections(f"{REF}.optim", "the reference is not trained"),
    Key(f"{REF}.model.*", (), "the reference is the policy as it is loaded; leave it out", refused=True,
        harmless=(None,)),
    *(key for room in (f"{ACTOR}.optim", "critic.optim") for key in idle(room, OTHER_OPTIMIZERS, OPTIMIZER)),
    *(Key(f"{room}.rollout_n", (), "rollout.n") for room in ROOMS),
    *idle(ACTOR, "use_prefix_grouper use_fused_kernels use_remove_padding sum_pi_squared_checkpointing", KERNEL),
    *idle(f"{ACTOR}.policy_loss", "clip_cov_ratio clip_cov_lb clip_cov_ub kl_cov_ratio ppo_kl_coef dro_beta",
          "only read by a loss_mode that oncurve does not have"),
    *sections(f"{ACTOR}.checkpoint critic.checkpoint", SAVED),
    *(key for room in (*ROOMS, ROLLOUT, "actor_rollout_ref", "reward_model")
      for key in sections(f"{room}.profiler {room}.profile", PROFILED)),
    *sections("global_profiler profile trainer.npu_profile trainer.controller_nsight_options "
              "trainer.worker_nsight_options", PROFILED),
    *idle("trainer", "profile_steps", PROFILED),
    *idle(REF, LOG_PROBS, TOKENS),
    *idle(ROLLOUT, LOG_PROBS, TOKENS),
    *idle(ROLLOUT, ENGINES, ENGINE),
    *sections(" ".join(f"{ROLLOUT}.{each}" for each in (
        "engine_kwargs", "checkpoint_engine", "prometheus", "trace", "agent", "disaggregation", "mtp", "qat",
        "layer_name_map")), ENGINE),
    refused(f"{ROLLOUT}.agent.default_agent_loop", "a rollout is one completion; leave it out", "single_turn_agent"),
    refused(f"{ROLLOUT}.over_sample_rate", "groups are sampled whole; set it to 0", 0, 0.0),
    refused(f"{ROLLOUT}.skip_rollout", "completions are sampled in every step; set it to False", False),
    *(refused(f"{each}.enable", "completions are sampled in every step; set it to False", False)
      for each in (f"{ROLLOUT}.skip", "skip.rollout", "skip.rollout_tq", "skip.async_rollout")),
    *sections(f"{ROLLOUT}.skip skip.rollout skip.rollout_tq skip.async_rollout {ROLLOUT}.multi_turn {MODEL}.mtp "
              "critic.model.mtp", OFF),
    *idle(MODEL, KERNELS, KERNEL),
    *idle("critic.model", KERNELS, KERNEL),
    *sections(" ".join(f"{room}.{each}" for room in (MODEL, "critic.model") for each in (
        "fused_kernel_options", "tiled_mlp", "gradient_checkpointing_kwargs")), KERNEL),
    *idle(f"{MODEL}.lora", ADAPTERS, "an adapter is initialised as PEFT does it, and exported merged or alone"),
    *sections("critic.model.lora", "only read with lora.rank"),
    *idle("critic.optim", "total_training_steps zero_indexed_step", THE_POLICYS),
    *idle("critic", CRITICS_BATCHES, TOKENS),
    *idle("critic", "shuffle data_loader_seed", "minibatches are drawn by run.seed"),
    *idle("critic.model", CRITICS_MODEL, THE_POLICYS),
    *sections("critic.model.override_config", THE_POLICYS),
    *sections("critic.kl_ctrl", "of older versions, as algorithm.kl_ctrl"),
    *idle("reward_model", f"{MACHINES} {REWARDS_OF_OLD}", REWARD_MODEL),
    *idle("reward.reward_model", MACHINES, REWARD_MODEL),
    *sections("reward_model.rollout reward.reward_model.rollout reward_model.model.fsdp_config reward_model.megatron",
              REWARD_MODEL),
    *idle("reward", "num_workers use_reward_loop", "[[rewards]] processes says how many"),
    *idle("reward.reward_manager", "module.name", "only read with module.path"),
    *sections("sandbox_fusion reward.sandbox_fusion reward_model.sandbox_fusion", "only read with its url"),
    refused("distillation.enabled", 'set it to False; on-policy distillation is oncurve\'s preset "distill"', False),
    *sections("distillation", "only read with distillation.enabled"),
    refused("trainer.v1.trainer_mode", "a step samples, then trains; set it to sync", "sync"),
    *sections("trainer.v1", "only read by asynchronous modes of verl"),
)  # fmt: skip
