"""Models, tokenizers and adapters by a directory in Hugging Face form or a hub id, checked before they are loaded.

A model that cannot be loaded is refused with a suggestion. Weights are safetensors, never pickle.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from oncurve.base.errors import ModelError, UserError, shown, suggest
from oncurve.models.adapters.adapter_files import CONFIG, FILES, StoredAdapter, read_adapter, read_config
from oncurve.models.adapters.inject import import_peft
from oncurve.models.loading.hub import offline, online, quiet

_CHOSEN_HERE = {"transformers_weights", "fusion_config", "distributed_config", "kernel_config"}
"""Keys of a configuration by which its network would be loaded from other files, or changed."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")


def directory_of(path: str, key: str = "model.path") -> Path | None:
    """Return the directory that `path`, the value of the setting `key`, names, checked; None where it is a hub id.

    Raises:
        ModelError: no path, a path to nothing, or a directory that holds no model oncurve can load.
    """
    if not path:
        raise ModelError(f"{key} is not set: name a directory in Hugging Face form, or a hub id")
    folder = Path(path).expanduser()
    if folder.is_dir():
        _check_directory(folder)
        return folder
    if folder.exists():
        raise ModelError(f"{path} is a file; {key} names a directory in Hugging Face form, or a hub id")
    if path[0] in "./~" or path.count("/") > 1:
        raise ModelError(f"{key}: {path}: no such directory{_near(folder)}")
    return None


def _near(folder: Path) -> str:
    """Return the model next to `folder`, which does not exist, that has a name like its: `"; did you mean 'x'?"`, or
    `""`.
    """
    try:
        return suggest(folder.name, [each.name for each in folder.parent.iterdir() if (each / "config.json").is_file()])
    except OSError:
        return ""


def _check_directory(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: it is not a model in Hugging Face form")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
        if pickled:
            raise ModelError(
                f"{folder} has only pickled weights ({pickled[0]}), which run code when they are loaded; oncurve never "
                "loads them. Convert them where you trust them: transformers' save_pretrained writes safetensors"
            )
        raise ModelError(f"{folder} has no weights (*.safetensors)")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{folder} has no tokenizer (tokenizer.json and its like); copy its files next to the weights")


def revised(name: str, revision: str, weights: bool = True) -> Path:
    """Return the folder of a hub id's files at a revision (branch, tag or commit), which are downloaded where they are
    not.

    `weights` False: without the weights. Raises ModelError: the hub, or an earlier download, has no such revision.
    """
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.model", "*.txt", "*.jinja", "*.py", *(["*.safetensors"] if weights else [])]
    with quiet(), explained(f"{name} at revision {revision}", "model"):
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=not online()))


COUNTS = {
    "num_hidden_layers": (1, 1000),
    "hidden_size": (1, 10**7),
    "vocab_size": (1, 10**9),
    "num_attention_heads": (0, 10**6),
    "num_key_value_heads": (0, 10**6),
    "head_dim": (0, 10**6),
    "intermediate_size": (0, 10**9),
    "max_position_embeddings": (1, 2**62),
}
"""The numbers of a configuration that determine a model's size, with the least and the largest value of each."""


def _check_configuration(config: Any, source: str) -> None:
    """Raises ModelError for a configuration whose numbers no model has, such as no layers."""
    text = config.get_text_config()
    for key, (least, most) in COUNTS.items():
        given = getattr(text, key, None)
        for value in given if isinstance(given, list) else [given]:
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise ModelError(
                    f"{source}: its configuration (config.json) says {key} = {shown(value)}; expected a whole number "
                    f"from {least} to {most:,}"
                )
    eos = getattr(config, "eos_token_id", None)
    for token in eos if isinstance(eos, list) else [eos]:
        if token is not None and (type(token) is not int or abs(token) >= 2**31):
            raise ModelError(
                f"{source}: its configuration (config.json) has eos_token_id = {shown(eos)}; expected a token id, or "
                "a list of them"
            )
    heads, grouped = getattr(text, "num_attention_heads", None), getattr(text, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(grouped, int) and grouped and heads % grouped:
        raise ModelError(
            f"{source}: its configuration (config.json) says num_attention_heads = {heads} and num_key_value_heads = "
            f"{grouped}; the second must divide the first"
        )


def stored_in_bfloat16(source: str, local: bool, trust_remote_code: bool) -> bool:
    """Return whether every floating weight of a model is stored in bfloat16, so that float32 would add nothing.

    The files of a directory are read; of a hub id the configuration, which was written with them.
    """
    files = sorted(Path(source).glob("*.safetensors"))
    if not files:
        return getattr(load_config(source, local, trust_remote_code), "dtype", None) == torch.bfloat16
    from safetensors import safe_open

    found: set[str] = set()
    for path in files:
        with safe_open(path, "pt") as file:
            found.update(file.get_slice(name).get_dtype() for name in file.keys())  # noqa: SIM118  (no mapping)
    return {name for name in found if name[0] in "FB" and name != "BOOL"} == {"BF16"}


def load_config(source: str, local: bool, trust_remote_code: bool = False) -> Any:
    """Return the configuration of a directory or hub id, without its settings of how a network is computed.

    A `config.json` can name an attention or an implementation of experts, for which transformers fetches a compiled
    kernel from the hub, and a pickled file of weights. oncurve uses transformers' defaults, and *.safetensors. The same
    holds for configurations within the configuration.

    Raises:
        ModelError: the weights are quantized, or the numbers are those of no model.
    """
    from transformers import AutoConfig

    with quiet(), offline(local):
        config = AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=trust_remote_code)
    for each in _nested(config):
        method = getattr(each, "quantization_config", None)
        if method:
            name = method.get("quant_method") if isinstance(method, dict) else getattr(method, "quant_method", None)
            raise ModelError(
                f"{source}: its weights are quantized ({name or 'quantization_config in its config.json'}), and only "
                "full weights can be trained or scored with here: name the model it was made from"
            )
        each._attn_implementation_internal = each._experts_implementation_internal = None
        for key in _CHOSEN_HERE & vars(each).keys():
            delattr(each, key)
    _check_configuration(config, source)
    return config


def _nested(config: Any) -> Iterator[Any]:
    """Return the configuration, and those within it."""
    yield config
    for value in vars(config).values():
        if hasattr(value, "_attn_implementation_internal"):
            yield from _nested(value)


def load_tokenizer(source: str, local: bool, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer of a directory or hub id. Raises ModelError where there is none."""
    with quiet(), explained(source, "tokenizer"), offline(local):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(source, local_files_only=local, trust_remote_code=trust_remote_code)


def load_module(
    loader: Any, source: str, config: Any, dtype: torch.dtype, local: bool, **options: Any
) -> tuple[Any, list[str]]:
    """Return the module that a class of transformers loads, and the sorted names of weights that the files lack."""
    given = {"config": config, "dtype": dtype, "local_files_only": local, "trust_remote_code": False, **options}
    module, loading = loader.from_pretrained(source, use_safetensors=True, output_loading_info=True, **given)
    return module, sorted(map(str, (*loading["missing_keys"], *loading["mismatched_keys"])))


@contextmanager
def explained(source: str, what: str, trust: str | None = "model.trust_remote_code") -> Iterator[None]:
    """Turn transformers' errors into a `ModelError` with a suggestion; `trust`: the setting that lets code run."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        raise ModelError(f"{source}: the {what} needs a package that is not installed{said_by(error)}") from error
    except Exception as error:  # transformers, huggingface_hub and safetensors have no common base
        if "trust_remote_code" in str(error):
            fix = ", which is never run here" if trust is None else f"; set {trust}=true if you trust it"
            raise ModelError(f"{source}: its {what} comes with code of its own{fix}") from error
        if isinstance(error, OSError) and not Path(source).is_dir():
            raise ModelError(
                f"{source} is neither a directory here nor a {what} the hub could give (a hub id needs the network, or "
                f"an earlier download; a private one needs `hf auth login`){_near(Path(source))}{said_by(error)}"
            ) from error
        raise ModelError(
            f"{source}: the {what} cannot be loaded; check its files, or download it again{said_by(error)}"
        ) from error


def said_by(error: BaseException) -> str:
    """Return a library's whole error, its type and all of its lines, to be put below a message of ours."""
    lines = [line.rstrip() for line in str(error).strip().splitlines()]
    first = type(error).__name__ + (f": {lines[0]}" if lines else "")
    return "\n" + "\n".join(f"  {line}".rstrip() for line in [first, *lines[1:]])


def stored_adapter(path: str, key: str = "lora.path") -> StoredAdapter:
    """Return the adapter that `path`, the value of the setting `key`, names.

    Raises ModelError: no such folder, no adapter in it, or one that oncurve does not compute.
    """
    peft = import_peft()
    folder = Path(path).expanduser()
    if not folder.is_dir():
        if folder.exists():
            raise ModelError(f"{path} is a file; {key} names a folder with an adapter in PEFT's form, or a hub id")
        if path[:1] in ("", ".", "/", "~") or path.count("/") != 1:
            raise ModelError(f"{key}: {path}: no such directory")
        from huggingface_hub import snapshot_download

        with explained(path, "adapter", None):
            folder = Path(snapshot_download(path, allow_patterns=list(FILES), local_files_only=not online()))
    return read_adapter(folder, peft, key)


def is_adapter(folder: Path) -> bool:
    """Return whether `folder` holds an adapter in PEFT's form, and no model."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of_adapter(folder: Path) -> str:
    """Return the base model that the adapter in `folder` names. Raises ModelError: it names none."""
    base = read_config(folder, "model.path").get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(f"{folder}: the adapter names no base model; name it: model.path=FOLDER")
    return base
