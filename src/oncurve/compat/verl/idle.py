"""verl's settings without meaning here: whole subtrees, each with its reason, whose names are known one by one.

So a misspelt name is an error here as well. `OPEN` are tables whose names are free.
"""

from __future__ import annotations

from oncurve.compat.dialect import Key
from oncurve.compat.verl.rows import ACTOR, MODEL, REF, ROLLOUT, idle, refused

FSDP = """
_target_ wrap_policy.min_num_params param_offload optimizer_offload offload_policy reshard_after_forward
fsdp_size forward_prefetch model_dtype use_orig_params seed full_determinism ulysses_sequence_parallel_size
entropy_from_logits_with_chunking entropy_from_logits_chunk_size use_torch_compile entropy_checkpointing
use_no_sync_for_gradient_accumulation pad_to_length pad_to_length_bucket forward_only strategy dtype
qat._target_ qat.mode qat.group_size qat.ignore_patterns qat.activation_observer qat.quantization_config_path
turbo_config.distributed.fully_shard_parallel_size turbo_config.distributed.tensor_parallel_size
turbo_config.distributed.expert_parallel_size turbo_config.distributed.expert_fully_shard_parallel_size
turbo_config.distributed.ulysses_parallel_size turbo_config.distributed.fsdp_plan.param_dtype
turbo_config.distributed.fsdp_plan.reduce_dtype turbo_config.distributed.fsdp_plan.output_dtype
turbo_config.distributed.fsdp_plan.fsdp_implementation
turbo_config.distributed.fsdp_plan.num_to_forward_prefetch
turbo_config.distributed.fsdp_plan.num_to_backward_prefetch
"""

PROFILER = """
_target_ tool enable all_ranks ranks save_path relocate_results finish_hook_cmd finish_hook_all_ranks
finish_hook_ranks tool_config.nsys._target_ tool_config.nsys.discrete tool_config.npu._target_
tool_config.npu.contents tool_config.npu.level tool_config.npu.analysis tool_config.npu.discrete
tool_config.torch._target_ tool_config.torch.contents tool_config.torch.discrete
tool_config.torch.schedule._target_ tool_config.torch.schedule.skip_first tool_config.torch.schedule.wait
tool_config.torch.schedule.warmup tool_config.torch.schedule.active tool_config.torch.schedule.repeat
tool_config.torch_memory._target_ tool_config.torch_memory.trace_alloc_max_entries
tool_config.torch_memory.stack_depth tool_config.torch_memory.memory_snapshot_num_steps
tool_config.precision_debugger._target_ tool_config.precision_debugger.config_path
tool_config.precision_debugger.steps tool_config.precision_debugger.stages tool_config.precision_debugger.strict
tool_config.npu.profile_token_start tool_config.npu.profile_token_end tool_config.torch.profile_token_start
tool_config.torch.profile_token_end
"""

GLOBAL_PROFILER = """
_target_ tool steps profile_continuous_steps save_path relocate_results finish_hook_cmd finish_hook_all_ranks
finish_hook_ranks global_tool_config.nsys._target_ global_tool_config.nsys.discrete
global_tool_config.nsys.controller_nsight_options.trace
global_tool_config.nsys.controller_nsight_options.cuda-memory-usage
global_tool_config.nsys.controller_nsight_options.cuda-graph-trace
global_tool_config.nsys.worker_nsight_options.trace
global_tool_config.nsys.worker_nsight_options.cuda-memory-usage
global_tool_config.nsys.worker_nsight_options.cuda-graph-trace
global_tool_config.nsys.worker_nsight_options.capture-range
global_tool_config.nsys.worker_nsight_options.capture-range-end
global_tool_config.nsys.worker_nsight_options.kill global_tool_config.torch_memory.trace_alloc_max_entries
global_tool_config.torch_memory.stack_depth global_tool_config.torch_memory.memory_snapshot_num_steps
global_tool_config.torch_memory.context global_tool_config.torch_memory.stacks
global_tool_config.precision_debugger._target_ global_tool_config.precision_debugger.config_path
global_tool_config.precision_debugger.steps global_tool_config.precision_debugger.stages
global_tool_config.precision_debugger.strict
"""

SCORING_ENGINE = """
_target_ name dtype gpu_memory_utilization enforce_eager cudagraph_capture_sizes free_cache_engine
data_parallel_size expert_parallel_size tensor_model_parallel_size pipeline_model_parallel_size
max_num_batched_tokens max_model_len max_num_seqs load_format layered_summon scheduling_policy full_determinism
seed multi_stage_wake_up limit_images enable_chunked_prefill enable_prefix_caching disable_log_stats
skip_tokenizer_init ignore_eos temperature top_k top_p do_sample n prompt_length response_length quantization
quantization_config_file mtp disaggregation.enabled disaggregation.prefill_replicas
disaggregation.decode_replicas disaggregation.decode_tensor_model_parallel_size disaggregation.transfer_backend
disaggregation.bootstrap_port disaggregation.ib_device
"""

MEGATRON = """
_target_ param_offload optimizer_offload tensor_model_parallel_size expert_model_parallel_size
expert_tensor_parallel_size pipeline_model_parallel_size virtual_pipeline_model_parallel_size
context_parallel_size sequence_parallel use_distributed_optimizer use_dist_checkpointing dist_checkpointing_path
dynamic_context_parallel max_seqlen_per_dp_cp_rank dist_checkpointing_prefix dist_ckpt_optim_fully_reshardable
distrib_optim_fully_reshardable_mem_efficient entropy_from_logits_with_chunking entropy_from_logits_chunk_size
seed use_mbridge vanilla_mbridge use_remove_padding pad_bshd_to_minibatch_max pad_to_length pad_to_length_bucket
use_megatron_fsdp forward_only dtype router_replay._target_ router_replay.mode router_replay.record_file
router_replay.replay_file qat._target_ qat.enable qat.mode qat.group_size qat.ignore_patterns
qat.activation_observer qat.quantization_config_path
"""

VEOMNI = """
_target_ param_offload optimizer_offload fsdp_size ulysses_parallel_size expert_parallel_size mixed_precision
seed full_determinism init_device enable_full_shard ckpt_manager load_checkpoint_path forward_prefetch strategy
use_torch_compile entropy_from_logits_with_chunking entropy_checkpointing forward_only enable_fsdp_offload
enable_reentrant attn_implementation moe_implementation cross_entropy_loss_implementation
rms_norm_implementation swiglu_mlp_implementation rotary_pos_emb_implementation rms_norm_gated_implementation
causal_conv1d_implementation chunk_gated_delta_rule_implementation load_balancing_loss_implementation
dsa_indexer_implementation dsa_attention_implementation mhc_implementation qat_implementation
force_use_huggingface enable_async_activation_offload activation_offload_modules
activation_offload_host_cache_limit_gb basic_modules pad_to_length pad_to_length_bucket router_replay._target_
router_replay.mode
"""

TORCHTITAN = """
_target_ param_offload optimizer_offload wrap_policy.min_num_params reshard_after_forward forward_prefetch
use_orig_params mixed_precision use_torch_compile entropy_from_logits_with_chunking
entropy_from_logits_chunk_size entropy_checkpointing data_parallel_size data_parallel_replicate_size
data_parallel_shard_size tensor_parallel_size expert_parallel_size pipeline_parallel_size context_parallel_size
attn_type spmd_backend activation_checkpoint max_seq_len strategy seed full_determinism forward_only dtype
"""

OTHER_OPTIMIZERS = """
lr_warmup_init lr_decay_steps weight_decay_incr_style lr_wsd_decay_style lr_wsd_decay_steps
use_checkpoint_opt_param_scheduler use_precision_aware_optimizer main_grads_dtype exp_avg_dtype exp_avg_sq_dtype
use_layer_wise_distributed_optimizer muon_momentum muon_nesterov muon_split_qkv muon_scale_mode
muon_coefficient_type muon_num_ns_steps muon_tp_mode muon_fp32_matmul_prec muon_extra_scale_factor
muon_scalar_optimizer muon_match_adamw_update_rms lr_start lr_decay_ratio
"""

TRANSFER = """
enable metrics.enabled metrics.port backend.storage_backend backend.SimpleStorage.total_storage_size
backend.SimpleStorage.num_data_storage_units backend.MooncakeStore.auto_init
backend.MooncakeStore.metadata_server backend.MooncakeStore.master_server_address
backend.MooncakeStore.local_hostname backend.MooncakeStore.protocol backend.MooncakeStore.global_segment_size
backend.MooncakeStore.local_buffer_size backend.MooncakeStore.device_name
"""

DISTILLATION = """
_target_ distillation_loss._target_ distillation_loss.loss_mode distillation_loss.topk
distillation_loss.use_task_rewards distillation_loss.distillation_loss_coef distillation_loss.loss_max_clamp
distillation_loss.log_prob_min_clamp distillation_loss.use_policy_gradient distillation_loss.policy_loss_mode
distillation_loss.clip_ratio distillation_loss.clip_ratio_low distillation_loss.clip_ratio_high n_gpus_per_node
nnodes teacher_models.teacher_model._target_ teacher_models.teacher_model.key
teacher_models.teacher_model.model_path teacher_models.teacher_model.num_replicas
teacher_models.teacher_model.inference._target_ teacher_models.teacher_model.inference.name
teacher_models.teacher_model.inference.dtype teacher_models.teacher_model.inference.gpu_memory_utilization
teacher_models.teacher_model.inference.enforce_eager
teacher_models.teacher_model.inference.cudagraph_capture_sizes
teacher_models.teacher_model.inference.free_cache_engine
teacher_models.teacher_model.inference.data_parallel_size
teacher_models.teacher_model.inference.expert_parallel_size
teacher_models.teacher_model.inference.tensor_model_parallel_size
teacher_models.teacher_model.inference.max_num_batched_tokens
teacher_models.teacher_model.inference.max_model_len teacher_models.teacher_model.inference.max_num_seqs
teacher_models.teacher_model.inference.load_format teacher_models.teacher_model.inference.limit_images
teacher_models.teacher_model.inference.enable_chunked_prefill
teacher_models.teacher_model.inference.enable_prefix_caching
teacher_models.teacher_model.inference.disable_log_stats
teacher_models.teacher_model.inference.skip_tokenizer_init teacher_models.teacher_model.inference.prompt_length
teacher_models.teacher_model.inference.response_length teacher_models.teacher_model.inference.temperature
teacher_key
"""

SPECULATION = """
_target_ enable_train enable_rollout detach_encoder mtp_loss_scaling_factor speculative_algorithm
speculative_num_steps speculative_eagle_topk speculative_num_draft_tokens method num_speculative_tokens
"""

ASYNCHRONOUS = """
sync colocate_async.num_warmup_batches separate_async.num_warmup_batches separate_async.parameter_sync_step
separate_async.hybrid_rollout._target_ separate_async.hybrid_rollout.enable_switch
separate_async.hybrid_rollout.switch_threshold_ratio separate_async.hybrid_rollout.adaptive_switch_threshold
separate_async.hybrid_rollout.switch_threshold_step_up separate_async.hybrid_rollout.switch_threshold_step_down
separate_async.hybrid_rollout.switch_threshold_release_steps
separate_async.hybrid_rollout.switch_cost_window_size sampler.max_off_policy_threshold
sampler.max_off_policy_strategy sampler.sync_refill_failed_groups sampler.custom_sampler.path
sampler.custom_sampler.name
"""

ENGINES = """
name mode nnodes n_gpus_per_node full_determinism seed dtype gpu_memory_utilization enforce_eager free_cache_engine
cudagraph_capture_sizes tensor_model_parallel_size data_parallel_size expert_parallel_size pipeline_model_parallel_size
max_num_batched_tokens max_model_len enable_chunked_prefill enable_prefix_caching logprobs_mode scheduling_policy
load_format layered_summon disable_log_stats multi_stage_wake_up router_config_path calculate_log_probs
skip_tokenizer_init enable_rollout_routing_replay moe_load_balance_metrics_interval quantization
quantization_config_file mtp qat disaggregation.enabled disaggregation.prefill_replicas disaggregation.decode_replicas
disaggregation.decode_tensor_model_parallel_size disaggregation.transfer_backend disaggregation.bootstrap_port
disaggregation.ib_device checkpoint_engine.backend checkpoint_engine.update_weights_bucket_megabytes
checkpoint_engine.custom_backend_module prometheus.enable prometheus.port prometheus.file
prometheus.served_model_name trace.project_name trace.experiment_name trace.backend trace.token2text
trace.max_samples_per_step_per_worker agent.num_workers agent.default_agent_loop agent.custom_async_server.path
agent.custom_async_server.name swap_space use_fire_sampling
"""
TURNS = """
max_assistant_turns tool_config_path function_tool_path max_user_turns max_parallel_calls max_tool_response_length
tool_response_truncate_side use_inference_chat_template tokenization_sanity_check_mode format num_repeat_rollouts
"""
KERNELS = """
use_shm enable_activation_offload use_remove_padding use_liger use_fused_kernels fused_kernel_options.impl_backend
tiled_mlp.enabled tiled_mlp.num_shards
"""
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
QUANTIZED = "mode group_size ignore_patterns activation_observer quantization_config_path"
SAVED = "save_contents load_contents async_save strict"
MACHINES = "num_workers enable_resource_pool n_gpus_per_node nnodes"
REWARDS_OF_OLD = """
strategy micro_batch_size micro_batch_size_per_gpu max_length use_dynamic_bsz forward_max_token_len_per_gpu
ulysses_sequence_parallel_size launch_reward_fn_async reward_loop_class_name model.use_remove_padding
model.use_fused_kernels model.fsdp_config.param_offload model.fsdp_config.min_num_params model.fsdp_config.fsdp_size
model.fsdp_config.wrap_policy.min_num_params
"""
CRITICS_BATCHES = """
ppo_micro_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu forward_micro_batch_size
forward_max_token_len_per_gpu forward_micro_batch_size_per_gpu
"""
CRITICS_MODEL = """
trust_remote_code custom_chat_template external_lib override_config hf_config_path enable_gradient_checkpointing
lora_alpha target_modules exclude_modules lora.type lora.alpha lora.dropout lora.target_modules lora.exclude_modules
"""

ONE_PROCESS = "each process has the whole model, with its gradients and moments"
ENGINE = "completions are sampled in this process, by the model that is trained"
TOKENS = "in tokens, by the policy's ppo_max_token_len_per_gpu; the result does not depend on it"
CLASS = "a class of verl"
KERNEL = "how verl computes; oncurve packs rows and fuses the head whatever is said"
PROFILED = "oncurve has no profiler of verl's; each step's seconds are in metrics.jsonl"
THE_POLICYS = "the critic begins as the policy, with its settings"

OPEN = (
    *(f"{ROLLOUT}.engine_kwargs.{engine}" for engine in ("vllm", "sglang", "trtllm")),
    f"{ROLLOUT}.checkpoint_engine.engine_kwargs",
    *(f"{room}.megatron.override_{table}" for room in (ACTOR, REF, "critic") for table in (
        "ddp_config", "transformer_config", "mcore_model_config")),
    *(f"{room}.checkpoint.mbridge_config" for room in (ACTOR, "critic")),
    "reward_model.rollout.engine_kwargs",
    "reward.reward_model.rollout.engine_kwargs",
    "distillation.teacher_models.teacher_model.inference.engine_kwargs",
    "trainer.v1.sampler.sampler_kwargs",
    "global_profiler.global_tool_config.torch_memory.kw_args",
    "ray_kwargs",
    "hydra",
)  # fmt: skip
"""Tables without meaning here whose names are free: what stands under one of them is one setting."""

CLASSES = (
    f"{ACTOR} {ACTOR}.optim {ACTOR}.policy_loss {ACTOR}.checkpoint {REF} {ROLLOUT} {ROLLOUT}.val_kwargs "
    f"{ROLLOUT}.multi_turn {ROLLOUT}.agent {ROLLOUT}.agent.custom_async_server {ROLLOUT}.checkpoint_engine "
    f"{ROLLOUT}.trace {ROLLOUT}.prometheus {MODEL} critic.optim critic critic.checkpoint critic.model reward "
    "reward.reward_manager reward.reward_manager.module reward.reward_model reward.sandbox_fusion algorithm "
    "algorithm.filter_groups algorithm.kl_ctrl skip"
).split()

KEYS: tuple[Key, ...] = (
    *(Key(f"{section}._target_", (), CLASS) for section in CLASSES),
    *(Key(name, (), "the workers of verl, which oncurve has none of") for name in OPEN),
    *(key for room in (ACTOR, REF) for key in idle(f"{room}.fsdp_config", FSDP, ONE_PROCESS)),
    *idle("critic.fsdp", FSDP, ONE_PROCESS),
    *idle("critic.model.fsdp_config", FSDP, ONE_PROCESS),
    *idle("actor_rollout_ref.ref.fsdp_config.qat", "enable", "the reference is as it is loaded"),
    *idle(ACTOR, "fsdp_config.grad_offload " + MEMORY, ONE_PROCESS),
    *idle(REF, MEMORY, ONE_PROCESS),
    *idle("critic", "strategy ulysses_sequence_parallel_size nccl_timeout", ONE_PROCESS),
    *idle("actor_rollout_ref", "hybrid_engine nccl_timeout", ONE_PROCESS),
    *(key for room in (ACTOR, REF, "critic") for name, tree in (
        ("megatron", MEGATRON), ("veomni", VEOMNI), ("torchtitan", TORCHTITAN))
      for key in idle(f"{room}.{name}", tree, ONE_PROCESS)),
    Key("model_engine", (), "which library trains verl's model; here it is oncurve's own"),
    *idle(f"{ACTOR}.optim", OTHER_OPTIMIZERS, "of Megatron's and other libraries' optimizers; oncurve has AdamW"),
    *idle("critic.optim", OTHER_OPTIMIZERS, "of Megatron's and other libraries' optimizers; oncurve has AdamW"),
    *idle(f"{ACTOR}.qat", QUANTIZED, "only read with qat.enable"),
    *idle(ACTOR, "rollout_n", "rollout.n"),
    *idle(REF, "rollout_n", "rollout.n"),
    *idle("critic", "rollout_n", "rollout.n"),
    *idle(ACTOR, "use_prefix_grouper use_fused_kernels use_remove_padding", KERNEL),
    *idle(f"{ACTOR}.policy_loss", "clip_cov_ratio clip_cov_lb clip_cov_ub kl_cov_ratio ppo_kl_coef dro_beta",
          "only read by a loss_mode that oncurve does not have"),
    *idle(f"{ACTOR}.checkpoint", SAVED, "a checkpoint has all that an exact resume needs"),
    *idle("critic.checkpoint", SAVED, "a checkpoint has all that an exact resume needs"),
    *(key for room in (ACTOR, REF, ROLLOUT, "critic") for key in idle(f"{room}.profiler", PROFILER, PROFILED)),
    *idle("global_profiler", GLOBAL_PROFILER, PROFILED),
    *idle(REF, LOG_PROBS, TOKENS),
    *idle(ROLLOUT, LOG_PROBS, TOKENS),
    *idle(ROLLOUT, ENGINES, ENGINE),
    refused(f"{ROLLOUT}.over_sample_rate", "groups are sampled whole; set it to 0", 0, 0.0),
    *idle(f"{ROLLOUT}.multi_turn", TURNS, "only read with multi_turn.enable"),
    *idle(MODEL, KERNELS, KERNEL),
    *idle("critic.model", KERNELS, KERNEL),
    *idle(f"{MODEL}.mtp", SPECULATION, "only read with mtp.enable"),
    *idle("critic.model.mtp", SPECULATION, "only read with mtp.enable"),
    *idle(f"{MODEL}.lora", ADAPTERS, "an adapter is initialised as PEFT does it, and exported merged or alone"),
    *idle("critic.model.lora", ADAPTERS, "only read with lora.rank"),
    *idle("critic.optim", "total_training_steps zero_indexed_step", THE_POLICYS),
    *idle("critic", CRITICS_BATCHES, TOKENS),
    *idle("critic", "shuffle data_loader_seed", "minibatches are drawn by run.seed"),
    *idle("critic.model", CRITICS_MODEL, THE_POLICYS),
    *idle("reward_model", MACHINES, ONE_PROCESS),
    *idle("reward_model", REWARDS_OF_OLD, "of older versions; a reward model fills its batches by itself"),
    *idle("reward_model.rollout", SCORING_ENGINE, "the reward model runs in this process"),
    *idle("reward", "num_workers", "[[rewards]] processes says how many"),
    *idle("reward.reward_manager", "module.name", "only read with module.path"),
    *idle("reward.reward_model", "enable_resource_pool n_gpus_per_node nnodes", ONE_PROCESS),
    *idle("reward.reward_model.rollout", SCORING_ENGINE, "the reward model runs in this process"),
    *idle("sandbox_fusion", "max_concurrent memory_limit_mb", "only read with sandbox_fusion.url"),
    *idle("reward.sandbox_fusion", "max_concurrent memory_limit_mb", "only read with sandbox_fusion.url"),
    refused("distillation.enabled", 'set it to False; on-policy distillation is oncurve\'s preset "distill"', False),
    *idle("distillation", DISTILLATION, "only read with distillation.enabled"),
    *idle("transfer_queue", TRANSFER, "there is one process"),
    refused("trainer.v1.trainer_mode", "a step samples, then trains; set it to sync", "sync"),
    *idle("trainer.v1", ASYNCHRONOUS, "only read by asynchronous modes of verl"),
    *(key for name in ("rollout", "rollout_tq", "async_rollout") for key in (
        refused(f"skip.{name}.enable", "completions are sampled in every step; set it to False", False),
        *idle(f"skip.{name}", "dump_dir steps action", "only read with enable"))),
    refused(f"{ACTOR}.optim.lr_decay_style", "of Megatron's optimizer; give optim.lr_scheduler_type", "constant"),
    refused(f"{ACTOR}.optim.min_lr", "of Megatron's optimizer; the schedules end at 0", 0, 0.0),
)  # fmt: skip
