"""TRL's settings without a counterpart: those without meaning here, and those that are refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oncurve.compat.dialect import Key

SAMPLED = "the learner trains on the distribution that is sampled from, whole; leave it out"
ENGINE = "completions are sampled in the training process, with the weights that are trained"
ONE_PROCESS = "the script is one process; a recipe's [cluster] has several; leave it out"
HUB = "nothing is pushed: upload the folder model/ of the run, for example by `hf upload`"
ALWAYS = "always so"
LOGGED = "every step is in metrics.jsonl, and every completion in rollouts/"
ON_DEMAND = "prompts are made when they are needed"
SPEED = "oncurve has its own kernels, and the result does not depend on them"


def _idle(reason: str, **defaults: Any) -> Iterable[Key]:
    return (Key(name, (), reason, default=default) for name, default in defaults.items())


def _refused(reason: str, **defaults: Any) -> Iterable[Key]:
    """Keys that are refused but for values that change nothing: the default, and None."""
    for name, default in defaults.items():
        equal = tuple({type(each): each for each in (default, None)}.values())
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            equal = (int(default), float(default), None) if default == int(default) else (default, None)
        yield Key(name, (), reason, default=default, refused=True, harmless=equal)


IDLE_KEYS = (
    *_idle("the run's folder: `--out`, in Python out=; it is never overwritten", output_dir=None),
    *_idle(ALWAYS, disable_dropout=False, full_determinism=False, ignore_data_skip=False),
    *_idle(ALWAYS + ": the norm of a step's gradient is of all its tokens", average_tokens_across_devices=True),
    *_idle("rewards get all columns", remove_unused_columns=False),
    *_idle("there is one process", ds3_gather_for_generation=True, log_on_each_node=True, save_on_each_node=False),
    *_idle("there is one process", local_rank=-1, ddp_timeout=1800),
    *_idle("completions are not padded in storage, and padding counts in no mean", pad_to_multiple_of="auto"),
    *_idle(ENGINE, use_vllm=False, vllm_mode="colocate", vllm_model_impl="vllm", vllm_enable_sleep_mode=False),
    *_idle(ENGINE, vllm_server_base_url=None, vllm_server_host="0.0.0.0", vllm_server_port=8000),
    *_idle(ENGINE, vllm_server_timeout=240.0, vllm_group_port=51216, vllm_gpu_memory_utilization=0.3),
    *_idle(ENGINE, vllm_max_model_length=None, vllm_tensor_parallel_size=1, cache_implementation=None),
    *_idle(ENGINE, use_transformers_continuous_batching=False, transformers_continuous_batching_config=None),
    *_idle(ENGINE, use_transformers_paged=False),
    *_idle(
        "the sampler is exact: its weights would be 1",
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode="sequence_mask",
        vllm_importance_sampling_clip_max=3.0,
        vllm_importance_sampling_clip_min=None,
        vllm_importance_sampling_cap=None,
    ),
    *_idle("only with tools, which are not available", max_tool_calling_iterations=None),
    *_idle(LOGGED, log_completions=False, num_completions_to_print=None, log_unique_prompts=False),
    *_idle(LOGGED, log_multimodal=True, logging_nan_inf_filter=True, include_num_input_tokens_seen="no"),
    *_idle("GRPOTrainer's log_history keeps to it; " + LOGGED, logging_strategy="steps", logging_steps=10),
    *_idle("GRPOTrainer's log_history keeps to it; " + LOGGED, logging_first_step=False),
    *_idle("oncurve has its own output", log_level="passive", log_level_replica="warning", disable_tqdm=None),
    *_idle(
        "the result does not depend on it", gradient_checkpointing_kwargs=None, activation_checkpointing_kwargs=None
    ),
    *_idle(SPEED, torch_compile=False, torch_compile_backend=None, torch_compile_mode=None, tf32=None),
    *_idle(SPEED, use_liger_kernel=False, liger_kernel_config=None, use_cache=False, torch_empty_cache_steps=None),
    *_idle(ON_DEMAND, dataloader_drop_last=False, dataloader_num_workers=0, dataloader_pin_memory=True),
    *_idle(ON_DEMAND, dataloader_persistent_workers=False, dataloader_prefetch_factor=None, dataloader_in_order=True),
    *_idle(ON_DEMAND, dataloader_multiprocessing_context=None),
    *_idle("in an evaluation all held-out prompts are sampled together", per_device_eval_batch_size=8),
    *_idle("an evaluation is of rewards, not of labels", prediction_loss_only=False, eval_do_concat_batches=True),
    *_idle("an evaluation is of rewards, not of labels", eval_use_gather_object=False, eval_accumulation_steps=None),
    *_idle("an evaluation is of rewards, not of labels", batch_eval_metrics=False, include_for_metrics=[]),
    *_idle("an evaluation is of rewards, not of labels", label_names=None, bf16_full_eval=False, fp16_full_eval=False),
    *_idle("a checkpoint has all that a resume needs", save_only_model=False, enable_jit_checkpoint=False),
    *_idle("a resume begins with the callbacks that it is given", restore_callback_states_from_checkpoint=False),
    *_idle("more is better: the best checkpoint is that of eval_reward", greater_is_better=None),
    *_idle("eval_strategy, save_strategy and the calls say it", do_train=False, do_eval=False, do_predict=False),
    *_idle("the argument of GRPOTrainer.train says it", resume_from_checkpoint=None),
    *_idle("nothing is pushed", hub_token=None, hub_private_repo=None, hub_model_id=None, hub_strategy="every_save"),
    *_idle("nothing is pushed", hub_always_push=False, hub_revision=None),
    *_idle("the rows of a step are drawn by run.seed", train_sampling_strategy="random", length_column_name="length"),
    *_idle("memory is in metrics.jsonl", skip_memory_metrics=True),
    *_idle("of trackio alone", trackio_bucket_id=None, trackio_static_space_id=None),
)

REFUSED_KEYS = (
    *_refused(SAMPLED, top_p=1.0, top_k=0, min_p=None, repetition_penalty=1.0),
    *_refused("completions cannot be forced into a pattern; reward the form", vllm_structured_outputs_regex=None),
    *_refused("float16 is not available; bf16=True is", fp16=False),
    Key(
        "router_aux_loss_coef",
        (),
        "the router of a mixture of experts is not balanced: write 0.0",
        refused=True,
        harmless=(None, 0.0, 0),
    ),
    *_refused("the schedules are linear, cosine and constant, to 0", lr_scheduler_kwargs=None),
    *_refused("AdamW has learner.betas and epsilon alone", optim_args=None, optim_target_modules=None),
    *_refused("it is not the loss of a policy; leave it out", label_smoothing_factor=0.0, neftune_noise_alpha=None),
    *_refused("as in TRL: whole groups; lower per_device_train_batch_size", auto_find_batch_size=False),
    *_refused("it is another name for gradient_checkpointing; write that", activation_checkpointing=None),
    *_refused("evaluations begin with the run; leave it out", eval_delay=0),
    *_refused(
        "the policy of the last step is kept; `oncurve export DIR --step best` writes the best one",
        load_best_model_at_end=False,
    ),
    *_refused(HUB, push_to_hub=False, log_completions_hub_repo=None),
    *_refused(ONE_PROCESS, deepspeed=None, fsdp=None, fsdp_config=None, parallelism_config=None, ddp_backend=None),
    *_refused(ONE_PROCESS, accelerator_config=None, ddp_find_unused_parameters=None, ddp_bucket_cap_mb=None),
    *_refused(ONE_PROCESS, ddp_broadcast_buffers=None, ddp_static_graph=None),
    *_refused("there is no such mode; `oncurve doctor DIR` looks for what is wrong", debug=""),
)
