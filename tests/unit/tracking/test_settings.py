"""What `tracking.to` refuses before anything is loaded, each in one line with the key."""

from pathlib import Path

import pytest

import oncurve
from oncurve.base.errors import ConfigError
from oncurve.config import load_config
from oncurve.models import tiny
from oncurve.run.tracking import check_tracking
from oncurve.tracking import protocol

TRACKER = """
class Mine:
    def begin(self, run): return 0
    def groups(self, step, rows): pass
    def metrics(self, step, metrics): pass
    def close(self): pass

class Half:
    def begin(self, run): return 0

def function(): pass
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('tracking.to=["tensorbord"]', "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ('tracking.to=["mine.py:Half"]', "lacks groups and metrics and close, so it is no tracker"),
        ('tracking.to=["mine.py:function"]', "is no class"),
        ('tracking.to=["mine.py:Min"]', "did you mean 'Mine'?"),
        ('tracking.to=["none.py:Mine"]', "none.py"),
        ('tracking.to=["wandb","wandb"]', "wandb stands there twice"),
        ('tracking.too=["wandb"]', "did you mean 'to'?"),
    ],
)
def test_a_wrong_tracker_is_refused_by_its_name(
    said: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(TRACKER)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"tracking\.to") as refused:
        check_tracking(load_config("grpo", [said])[0])
    assert expected in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_path_is_relative_to_the_recipe_and_absolute_in_the_resolved_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TRACKER)
    (tmp_path / "recipe.toml").write_text('[tracking]\nto = ["mine.py:Mine", "tensorboard"]\n')
    config, _ = load_config(tmp_path / "recipe.toml")
    assert config.tracking.to == (f"{tmp_path}/mine.py:Mine", "tensorboard")
    check_tracking(config)


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "find_spec", lambda name: None)
    for name in ("tensorboard", "wandb", "trackio"):
        with pytest.raises(ConfigError, match=rf"{name} is not installed: pip install 'oncurve\[{name}\]'"):
            check_tracking(load_config("grpo", [f'tracking.to=["{name}"]'])[0])


def test_wandb_online_needs_a_key_and_offline_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="wandb login"):
        check_tracking(load_config("grpo", ['tracking.to=["wandb"]'])[0])
    check_tracking(load_config("grpo", ['tracking.to=["wandb"]', "tracking.mode=offline"])[0])
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_tracking(load_config("grpo", ['tracking.to=["wandb"]'])[0])


def test_a_space_is_nothing_offline() -> None:
    with pytest.raises(ConfigError, match=r"tracking\.space"):
        load_config("grpo", ["tracking.mode=offline", "tracking.space=me/runs"])


def test_trackers_need_a_run_directory() -> None:
    with pytest.raises(ConfigError, match="name one: out="):
        oncurve.train(
            model=tiny.path(),
            data=[{"prompt": "1+1="}],
            reward="task",
            settings={"tracking": {"to": ["tensorboard"]}},
        )
