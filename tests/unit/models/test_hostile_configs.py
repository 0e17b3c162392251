"""What a model's config.json says decides what the model is, never what code computes it or what is fetched for it."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from fakes.architectures import architecture
from fakes.classifiers import byte_tokenizer, lay_down
from fakes.tables import table
from oncurve.base.errors import ModelError
from oncurve.forecast.unloaded import read_model_config
from oncurve.models import ModelConfig, save
from oncurve.models.classifiers.load import load_classifier
from oncurve.models.loading.checks import load_tokenizer

KERNEL = "somebody/kernel"
SAYINGS = table("hostile_configs", "sayings")


def amend(folder: Path, said: dict[str, object], file: str = "config.json") -> Path:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(architecture("llama"), byte_tokenizer(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("said", SAYINGS.values(), ids=SAYINGS.keys())
def test_a_model_computes_as_it_would_without_it(folder: Path, said: dict[str, object]) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    loaded = ModelConfig(path=str(amend(folder, said)), dtype="float32", device="cpu").build()
    assert loaded.model.fast
    config = loaded.model.module.config
    assert config._attn_implementation == "sdpa"
    assert config._experts_implementation != KERNEL
    ids = torch.arange(3, 9)[None]
    assert torch.equal(loaded.model.module(ids).logits, architecture("llama")(ids).logits)
    assert read_model_config(str(folder))._attn_implementation is None  # what a plan builds its rehearsal from


def test_quantized_weights_are_refused_before_anything_is_fetched_for_them(folder: Path, tmp_path: Path) -> None:
    said = {"quantization_config": {"quant_method": "fp8"}}
    amend(folder, said)
    folder = amend(lay_down(tmp_path / "classifier"), said)
    for load in (
        lambda: ModelConfig(path=str(folder), device="cpu").build(),
        lambda: load_classifier(str(folder), "outcome", device="cpu"),
        lambda: read_model_config(str(folder)),
    ):
        with pytest.raises(ModelError, match=r"its weights are quantized \(fp8\).*name the model it was made from"):
            load()


@pytest.mark.parametrize("place", ["code", f"{KERNEL}--code"], ids=["in the folder", "elsewhere"])
def test_code_that_comes_along_never_runs_unless_it_is_trusted(folder: Path, tmp_path: Path, place: str) -> None:
    ran = tmp_path / "ran"
    (folder / "code.py").write_text(f"open({str(ran)!r}, 'w')\nclass C: pass\n")
    code = {"AutoConfig": f"{place}.C", "AutoModelForCausalLM": f"{place}.C", "AutoTokenizer": [f"{place}.C", None]}
    for said in ({"auto_map": code}, {"auto_map": code, "tokenizer_class": "C"}):
        amend(folder, said, "tokenizer_config.json")
        try:
            assert isinstance(load_tokenizer(str(folder), local=True), PreTrainedTokenizerFast)  # transformers' own
        except ModelError as error:
            assert "comes with code of its own" in str(error)  # noqa: PT017  (either will do)
        assert not ran.exists()
    amend(folder, {"model_type": "something_new", "auto_map": code})
    for load in (
        lambda: ModelConfig(path=str(folder), device="cpu").build(),
        lambda: load_classifier(str(folder), "outcome", device="cpu"),
        lambda: read_model_config(str(folder)),
    ):
        with pytest.raises(ModelError):
            load()
        assert not ran.exists()


@pytest.mark.slow
def test_with_the_package_for_kernels_installed_none_is_asked_for_and_no_connection_is_opened(tmp_path: Path) -> None:
    """A process of its own, where `kernels` can be imported and writes down what it is asked for."""
    package = tmp_path / "site" / "kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        textwrap.dedent(
            """
            import os, socket
            from unittest.mock import MagicMock

            def get_kernel(name, **_):
                with open(os.environ["ASKED_FOR"], "a") as file:
                    file.write(name)
                raise ValueError("no kernel")

            use_kernel_forward_from_hub = lambda name: (lambda cls: cls)
            use_kernel_func_from_hub = use_kernelized_func = use_kernel_forward_from_hub

            def __getattr__(name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return MagicMock()
            """
        )
    )
    about = tmp_path / "site" / "kernels-0.99.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: VERSION\n")
    script = """
        import pathlib, sys
        from transformers.utils import import_utils
        from oncurve.models import ModelConfig
        assert import_utils.is_kernels_available()
        for folder in sys.argv[1:]:
            print(ModelConfig(path=folder, dtype="float32", device="cpu").build().model.path_reason)
        """
    from transformers.utils import import_utils

    (about / "METADATA").write_text(f"Name: kernels\nVersion: {import_utils.KERNELS_MIN_VERSION}\n")
    folders = []
    for number, said in enumerate(SAYINGS.values()):
        save(architecture("llama"), byte_tokenizer(), tmp_path / str(number))
        folders.append(str(amend(tmp_path / str(number), said)))
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.0)
        environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | {
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path]),
            "HF_ENDPOINT": f"http://127.0.0.1:{trap.getsockname()[1]}",
            "ASKED_FOR": str(tmp_path / "asked"),
        }
        command = [sys.executable, "-c", textwrap.dedent(script), *folders]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.count("fast path") == len(SAYINGS)
        assert not (tmp_path / "asked").exists()
        with pytest.raises(BlockingIOError):
            trap.accept()
