"""The methods of TRL's `GRPOTrainer` that its loop calls and oncurve's does not: a subclass that has one is refused."""

from __future__ import annotations

from oncurve.base.errors import ConfigError

OWN = ("evaluate", "save_model")
"""Methods that `GRPOTrainer` has here for its user. TRL's loop calls them, too."""

OF_GRPO = """
_calculate_rewards _compute_loss _generate _generate_and_score_completions _generate_single_turn
_get_per_token_logps_and_entropies _get_tool_suffix_ids _log_completion_extra _log_metric _tokenize_prompts
_tool_call_loop compute_loss get_gamma_weights get_high_entropy_mask get_off_policy_mask log loss_is_scaled_for_ga
prediction_step training_step
"""
"""Those of TRL 1.16's `GRPOTrainer`, some of which transformers' `Trainer` has, too."""

OF_TRAINER = """
_build_accelerator_args _clip_grad_norm _defer_fsdp_gradient_reduction _determine_best_metric _evaluate
_finalize_training _finish_current_push _get_collator_with_removed_columns _get_dataloader _get_eval_sampler
_get_grad_norm _get_learning_rate _get_num_items_in_batch _get_output_dir _get_train_sampler _has_mixed_mesh_grads
_hp_search_setup _init_training_state _inner_training_loop _issue_warnings_after_load _load_best_model
_load_callback_state _load_from_checkpoint _load_optimizer_and_scheduler _load_rng_state _load_scaler
_maybe_log_save_evaluate _mixed_mesh_grad_norm _move_model_to_device _prepare_context_parallel_inputs
_prepare_for_training _prepare_input _prepare_inputs _push_from_checkpoint _remove_unused_columns
_report_to_hp_search _run_epoch _save _save_checkpoint _save_optimizer_and_scheduler _save_rng_state _save_scaler
_set_signature_columns_if_needed _sync_replicated_trainable_parameters _track_num_input_tokens
_tune_save_checkpoint _update_auto_batch_size _validate_args _wrap_model autocast_smart_context_manager
call_model_init compute_loss_context_manager create_accelerator_and_postprocess create_model_card
create_optimizer create_optimizer_and_scheduler create_scheduler evaluation_loop floating_point_ops
get_batch_samples get_cp_size get_decay_parameter_names get_eval_dataloader get_learning_rates
get_num_trainable_parameters get_optimizer_cls_and_kwargs get_optimizer_group get_sp_size get_test_dataloader
get_total_train_batch_size get_tp_size get_train_dataloader hyperparameter_search init_hf_repo
is_local_process_zero is_world_process_zero metrics_format num_examples pop_callback predict
set_initial_training_values store_flos
"""
"""Those of transformers' `Trainer`."""

NOT_CALLED = frozenset((*OWN, *OF_GRPO.split(), *OF_TRAINER.split()))


def refuse_overrides(trainer: type, *assigned: str) -> None:
    """Raises ConfigError: a subclass of `GRPOTrainer`, or an assignment, replaces methods that are not called here."""
    found = set(assigned)
    for each in trainer.__mro__:
        found |= NOT_CALLED.intersection(vars(each)).difference(OWN if each.__module__.startswith("oncurve.") else ())
    if found:
        raise ConfigError(
            f"{trainer.__name__}: oncurve's loop does not call {', '.join(sorted(found))}, so training would go on "
            "without what replaces it; remove it. A loss, an advantage or a rollout engine of your own is a component: "
            "docs/extending.md"
        )
