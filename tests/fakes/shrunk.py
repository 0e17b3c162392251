"""Tiny random models of the architectures of transformers, made by shrinking the defaults of their configurations."""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.tables import table

VOCABULARY = 64

_BY_SIZE: dict[Any, str] = {
    VOCABULARY: "vocab_size vocab_size_per_layer_input",
    128: "max_position_embeddings n_positions max_target_positions n_ctx max_seq_len context_length",
    48: "intermediate_size n_inner d_ff ffn_dim dim_feedforward decoder_ffn_dim encoder_ffn_dim dim_ff dff d_inner "
    "feed_forward_size mlp_hidden ffn_hidden_size intermediate_size_mlp",
    32: "hidden_size n_embd d_model dim embedding_size n_embed word_embed_proj_dim dim_model attention_hidden_size "
    "lru_width",
    16: "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size q_lora_rank "
    "shared_intermediate_size expert_ffn_hidden_size kv_lora_rank attention_window_size",
    8: "head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim mamba_n_heads mamba_d_head mamba_d_state state_size "
    "mamba_num_heads mamba_head_dim ssm_state_size linear_key_head_dim linear_value_head_dim sliding_window "
    "hidden_size_per_layer_input",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads num_experts "
    "num_decoder_attention_heads num_encoder_attention_heads num_local_experts n_routed_experts moe_num_experts "
    "linear_num_value_heads",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers "
    "num_encoder_layers n_encoder_layers num_key_value_heads num_experts_per_tok linear_num_key_heads eos_token_id",
    1: "n_group topk_group n_shared_experts first_k_dense_replace bos_token_id",
    0: "pad_token_id",
    0.2: "initializer_range init_std",  # large enough that attention is far from uniform
}
_SIZES = {name: size for size, names in _BY_SIZE.items() for name in names.split()}

_OF_THEIR_OWN: dict[str, dict[str, Any]] = table("shrunk", "of_their_own")


def shrunk(kind: str, **settings: Any) -> nn.Module:
    """A model of `kind` (the `model_type` of its configuration), the same at every call."""
    config = AutoConfig.for_model(kind, **_smaller(AutoConfig.for_model(kind)) | _OF_THEIR_OWN.get(kind, {}) | settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module: nn.Module = AutoModelForCausalLM.from_config(config)
    return module.eval()


def _smaller(config: Any) -> dict[str, Any]:
    """The settings that make it so, those of configurations within it too."""
    smaller: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if hasattr(getattr(config, name, None), "to_dict") and isinstance(value, dict):
            smaller[name] = _smaller(getattr(config, name))
        elif name in _SIZES and value is not None and not isinstance(value, dict):
            smaller[name] = [_SIZES[name]] * 2 if isinstance(value, list) else _SIZES[name]
    return smaller
