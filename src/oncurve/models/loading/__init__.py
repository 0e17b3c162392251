"""Hugging Face files: weights and their checks, saving, the hub, precision and chat templates."""

from oncurve.models.loading.chat_templates import (
    RENDERING,
    apply_template,
    chat_text,
    check_variables,
    encode,
    has_template,
    render,
)
from oncurve.models.loading.checks import (
    base_of_adapter,
    directory_of,
    explained,
    is_adapter,
    load_config,
    load_tokenizer,
    said_by,
    stored_adapter,
)
from oncurve.models.loading.hub import offline, online, quiet
from oncurve.models.loading.precision import DTYPES
from oncurve.models.loading.saving import ADAPTER
from oncurve.models.loading.weights import ModelConfig, eos_ids_of, loaded_from, vocabulary_of
