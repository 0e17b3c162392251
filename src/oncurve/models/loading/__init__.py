"""Hugging Face files: weights and their checks, saving, the hub, precision and chat templates."""

from oncurve.models.loading.chat_templates import (
    RENDERING as RENDERING,
    apply_template as apply_template,
    chat_text as chat_text,
    check_variables as check_variables,
    encode as encode,
    has_template as has_template,
    render as render,
)
from oncurve.models.loading.checks import (
    base_of_adapter as base_of_adapter,
    directory_of as directory_of,
    explained as explained,
    is_adapter as is_adapter,
    load_config as load_config,
    load_tokenizer as load_tokenizer,
    said_by as said_by,
    stored_adapter as stored_adapter,
)
from oncurve.models.loading.hub import offline as offline, online as online, quiet as quiet
from oncurve.models.loading.precision import DTYPES as DTYPES
from oncurve.models.loading.saving import ADAPTER as ADAPTER
from oncurve.models.loading.weights import (
    ModelConfig as ModelConfig,
    eos_ids_of as eos_ids_of,
    loaded_from as loaded_from,
    vocabulary_of as vocabulary_of,
)
