"""Every reader of YAML refuses a text that stands for more values than memory holds, before it builds any of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oncurve.base.errors import ConfigError
from oncurve.compat.rlox.dialect import translated
from oncurve.compat.trl.parsing import TrlParser
from oncurve.compat.verl import read
from oncurve.config import load_config

LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))
TABLES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{{', '.join(f'k{k}: *a{n - 1}' for k in range(10))}}}\n" for n in range(1, 30)
)
TEXTS = {"lists": LAUGHS, "tables": TABLES, "itself": "a: &a [*a]\n", "deep": "a: " + "[" * 500}

READERS: dict[str, Callable[[str], object]] = {
    "recipe": load_config,
    "verl": lambda file: read([file]),
    "rlox": lambda file: translated(Path(file)),
    "TRL": lambda file: TrlParser([]).parse_args_and_config(["--config", file]),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_aliases_of_aliases_is_refused(reader: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(TEXTS[text])
    with pytest.raises(ConfigError, match=r"do anchors refer to anchors|nested") as caught:
        READERS[reader](str(file))
    assert str(file) in str(caught.value)


def test_an_alias_that_is_used_twice_is_its_value(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("data: {train_batch_size: &n 8}\nactor_rollout_ref: {actor: {ppo_mini_batch_size: *n}}\n")
    assert [each.value for each in read([str(file)]).said.values()] == [8, 8]
