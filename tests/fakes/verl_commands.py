"""Settings of verl's documented GSM8K commands, a small model, and rows in verl's form to run them on."""

import json
from collections.abc import Mapping
from pathlib import Path

from fakes.tables import table

SETTINGS = table("verl_commands", "settings")


def settings_of(name: str) -> dict[str, str]:
    """Return a command's settings, or those that several commands share."""
    parts = SETTINGS[name].get("of", ())
    own = {key: value for key, value in SETTINGS[name].items() if key != "of"}
    return dict(item for part in parts for item in settings_of(part).items()) | own


COMMANDS = {name: settings_of(name) for name in ("grpo", "lora", "ppo", "dapo", "dr_grpo", "kl_in_reward")}
"""The settings of each command, as its script gives them to Hydra."""


def sized(settings: Mapping[str, str], model: Path, data: Path, out: Path) -> dict[str, str]:
    """A command with a small model, a few rows and small sizes; nothing else is changed."""
    small = {name: size.format(model=model, data=data) for name, size in table("verl_commands", "sizes").items()}
    changed = {name: small.get(name, value) for name, value in settings.items()}
    return changed | {"trainer.total_training_steps": "1", "trainer.default_local_dir": str(out)}


def words(settings: Mapping[str, str]) -> list[str]:
    """The settings as words of a command line."""
    return [f"{name}={value}" for name, value in settings.items()]


def write_rows(source: Path, folder: Path, source_name: str = "openai/gsm8k") -> None:
    """Rows of GSM8K in verl's form, as its preprocessing writes them: `train.parquet` and `test.parquet`."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    ask = 'Let\'s think step by step and output the final answer after "####".'
    for split, first in (("train", 0), ("test", 50)):
        lines = source.read_text(encoding="utf-8").splitlines()[first : first + (12 if split == "train" else 3)]
        rows = []
        for index, row in enumerate(map(json.loads, lines)):
            truth = row["answer"].rpartition("#### ")[2].replace(",", "")
            rows.append(
                {
                    "data_source": source_name,
                    "prompt": [{"role": "user", "content": f"{row['question']} {ask}"}],
                    "ability": "math",
                    "reward_model": {"style": "rule", "ground_truth": truth},
                    "extra_info": {"split": split, "index": index},
                }
            )
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{split}.parquet")
