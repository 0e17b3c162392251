"""verl's `data.*`: files, columns, lengths, and how many prompts a step has."""

from __future__ import annotations

from typing import Any

from oncurve.base.errors import ConfigError, shown
from oncurve.compat.dialect import Key, Values
from oncurve.compat.verl.rows import (
    MODEL,
    OR_NONE,
    TEXT,
    WHOLE,
    YES_OR_NO,
    idle,
    is_given,
    locals_of,
    meaning,
    refused,
    sections,
)

PATHS = (*TEXT, list)
CLASS = 'a class of rows is [data] kind = "file.py:Class"; print the recipe without it, and add that'
CUT = {
    "right": "the end of a prompt is its question; use left, or filter_overlong_prompts=True",
    "middle": "a prompt without its middle asks something else; use left, or filter_overlong_prompts=True",
}


def _eval_files(paths: Any, values: Values) -> dict[str, Any]:
    return {"data.eval_path": locals_of(paths)} if is_given(values, "data.val_files") or evaluates(values) else {}


def evaluates(values: Values) -> bool:
    """Whether the run evaluates as it goes on."""
    return bool(values["trainer.test_freq"] > 0)


def _limit(setting: str) -> Any:
    def make(count: Any, values: Values) -> dict[str, Any]:
        return {setting: count} if count is not None and count > 0 else {}

    return make


def _overlong(filtered: Any, values: Values) -> dict[str, Any]:
    return {"data.overlong": "drop"} if filtered else {}


def _truncation(kind: Any, values: Values) -> dict[str, Any]:
    if values["data.filter_overlong_prompts"]:
        meaning(kind, {"error": "", "left": "", **dict.fromkeys(CUT, "")})
        return {}
    return {"data.overlong": meaning(kind, {"error": "error", "left": "truncate_left"}, CUT)}


def _tokenizer(path: Any, values: Values) -> dict[str, Any]:
    if path not in (None, values[f"{MODEL}.path"]):
        raise ConfigError(
            f"the tokenizer is that of {MODEL}.path; put this one into the model's folder, got {shown(path)}"
        )
    return {}


KEYS: tuple[Key, ...] = (
    Key(
        "data.train_files",
        ("data.path",),
        "parquet, JSONL or CSV, one file or a list",
        lambda paths, values: {"data.path": locals_of(paths)},
        default="~/data/rlhf/gsm8k/train.parquet",
        applied=True,
        types=PATHS,
    ),
    Key(
        "data.val_files",
        ("data.eval_path",),
        "held-out rows",
        _eval_files,
        default="~/data/rlhf/gsm8k/test.parquet",
        applied=True,
        types=PATHS,
    ),
    Key(
        "data.train_batch_size",
        ("data.prompts_per_step",),
        "in prompts in both",
        default=1024,
        applied=True,
        types=WHOLE,
    ),
    Key("data.prompt_key", ("data.prompt_column",), default="prompt", types=TEXT),
    Key(
        "data.max_prompt_length",
        ("data.max_prompt_tokens",),
        default=512,
        applied=True,
        types=WHOLE,
    ),
    Key("data.max_response_length", ("rollout.max_new_tokens",), default=512, types=WHOLE),
    Key(
        "data.filter_overlong_prompts",
        ("data.overlong",),
        'True is "drop"; False leaves it to data.truncation',
        _overlong,
        default=False,
        types=YES_OR_NO,
    ),
    Key(
        "data.truncation",
        ("data.overlong",),
        'left is "truncate_left"; next to filter_overlong_prompts=True it has no effect',
        _truncation,
        default="error",
    ),
    Key(
        "data.train_max_samples",
        ("data.limit",),
        "the first ones, where verl draws them if data.shuffle is True; -1 is all",
        _limit("data.limit"),
        default=-1,
        types=WHOLE,
    ),
    Key(
        "data.val_max_samples",
        ("eval.limit",),
        "the first ones; -1 is all",
        _limit("eval.limit"),
        default=-1,
        types=WHOLE,
    ),
    Key("data.shuffle", ("data.shuffle",), default=True, types=YES_OR_NO),
    Key(
        "data.seed",
        ("run.seed",),
        "of everything random, not of the rows alone",
        lambda seed, values: {} if seed is None else {"run.seed": seed},
        types=(*WHOLE, *OR_NONE),
    ),
    Key(
        "data.apply_chat_template_kwargs",
        ("data.chat_template_kwargs",),
        default={},
        types=(dict,),
    ),
    Key(
        "data.trust_remote_code",
        ("model.trust_remote_code",),
        default=False,
        types=YES_OR_NO,
    ),
    Key("data.tokenizer", ("model.path",), "the model's own", _tokenizer),
    Key("data.gen_batch_size", (), "a round of dynamic sampling is data.train_batch_size prompts, whatever is kept"),
    refused("data.custom_cls.path", CLASS, None),
    refused("data.custom_cls.name", CLASS, None),
    *(refused(f"data.{name}", "rows are read from files, in the order of data.shuffle; leave it out", None)
      for name in ("sampler.class_path", "sampler.class_name", "datagen.path", "datagen.name")),
    refused("data.continuous_token.enable", "a rollout is one completion; set it to False", False),
    *idle("data", "continuous_token.model_family", "only read with continuous_token.enable"),
    refused("data.tool_config_path", "there are no tools in a rollout; leave it out", None),
    refused("data.function_tool_path", "there are no tools in a rollout; leave it out", None),
    *idle("data", "val_batch_size", "evaluation fills its batches by rollout.max_concurrent"),
    *idle("data", "image_key video_key audio_key image_patch_size return_multi_modal_inputs",
          "prompts are text; rows with images are refused when they are read"),
    *sections("data.mm_processor_kwargs", "prompts are text; rows with images are refused when they are read"),
    *idle("data", "return_raw_input_ids return_raw_chat return_full_prompt", "how verl passes prompts on inside"),
    *idle("data", "validation_shuffle", "the order of held-out rows changes no figure"),
    *idle("data", "use_shm dataloader_num_workers filter_overlong_prompts_workers", "the run's process reads rows"),
)  # fmt: skip
