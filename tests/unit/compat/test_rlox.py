"""rlox's import line and file in oncurve: its names, its functions, its algorithm, its YAML."""

import copy
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import yaml
from torch import Tensor

import oncurve
import oncurve.compat.rlox as compat
from fakes.mutations import Pairs, accounted, mutations
from fakes.tables import table
from fakes.tiny_policy import TinyLM
from fakes.tolerance import about, assert_close
from oncurve.base.errors import ConfigError
from oncurve.compat.dialect import Said, Translation
from oncurve.compat.rlox import REASONS
from oncurve.compat.rlox.dialect import DIALECT, translated
from oncurve.config import load_config


@pytest.mark.parametrize("name", REASONS)
def test_what_is_elsewhere_is_refused_by_name(name: str) -> None:
    with pytest.raises(ImportError, match=f"rlox's {name} is not in oncurve, which trains language models"):
        getattr(compat, name)
    assert name not in compat.__all__


def test_a_name_that_rlox_does_not_have_is_an_ordinary_error() -> None:
    with pytest.raises(ImportError, match="cannot import name"):
        from oncurve.compat.rlox import GPRO  # noqa: F401


def test_the_star_gives_rloxs_names_and_no_others() -> None:
    given: dict[str, Any] = {}
    exec("from oncurve.compat.rlox import *", given)  # noqa: S102 - a star is for the top of a module
    assert {name for name in given if not name.startswith("__")} == set(compat.__all__)
    assert all(name == "GRPO" or name.startswith("compute_") or name.endswith(HOOKS) for name in compat.__all__)


HOOKS = ("Callback", "CallbackList", "Logger")
LOGPROBS, REFERENCE = [-1.0, -0.5, -2.0, -0.1], [-1.2, -0.1, -3.0, -25.0]


def test_kl_divergences_are_rloxs_formulas() -> None:
    pairs = list(zip(LOGPROBS, REFERENCE, strict=True))
    exact = [math.exp(p) * (p - q) for p, q in pairs]
    schulman = [math.exp(p - q) - (p - q) - 1 for p, q in pairs]
    policy, reference = numpy.array(LOGPROBS), numpy.array(REFERENCE)
    close = {"rel": 1e-13}
    assert compat.compute_token_kl(policy, reference) == pytest.approx(sum(exact), **close)
    assert compat.compute_token_kl_schulman(policy, reference) == pytest.approx(sum(schulman), **close)
    pairwise = compat.compute_batch_token_kl(policy, reference, 2)
    assert pairwise.tolist() == pytest.approx([sum(exact[:2]), sum(exact[2:])], **close)
    pairwise = compat.compute_batch_token_kl_schulman(policy, reference, seq_len=2)
    assert pairwise.tolist() == pytest.approx([sum(schulman[:2]), sum(schulman[2:])], **close)
    single = compat.compute_batch_token_kl_f32(policy.astype("f4"), reference.astype("f4"), 2)
    assert (single.dtype, single.tolist()) == (numpy.float32, pytest.approx([sum(exact[:2]), sum(exact[2:])], rel=1e-6))
    assert isinstance(compat.compute_batch_token_kl(torch.tensor(LOGPROBS), torch.tensor(REFERENCE), 2), Tensor)
    assert compat.compute_token_kl([], []) == 0


def test_advantages_of_steps_are_the_sum_of_their_definition() -> None:
    rewards, values, dones = [1.0, 1, 1, 0, 1], [0.5, 0.6, 0.7, 0.3, 0.8], [0.0, 0, 0, 1, 0]
    gamma, lam, last = 0.99, 0.95, 0.9
    after = [*values[1:], last]
    delta = [r + gamma * n * (1 - d) - v for r, n, d, v in zip(rewards, after, dones, values, strict=True)]

    def advantage(t: int) -> float:
        found, weight = 0.0, 1.0
        for later in range(t, 5):
            found += weight * delta[later]
            weight *= gamma * lam * (1 - dones[later])
        return found

    expected = [advantage(t) for t in range(5)]
    advantages, returns = compat.compute_gae(rewards, values, dones, last_value=last, gamma=gamma, lam=lam)
    assert advantages.tolist() == pytest.approx(expected, rel=1e-13)
    assert returns.tolist() == pytest.approx([a + v for a, v in zip(expected, values, strict=True)], rel=1e-13)
    two = compat.compute_gae_batched(rewards * 2, values * 2, dones * 2, [last, last], 5, gamma, lam)
    assert two[0].tolist() == [*advantages.tolist()] * 2
    assert compat.compute_gae_batched_f32(rewards, values, dones, [last], 5, gamma, lam)[0].dtype == numpy.float32


@pytest.mark.parametrize(
    "call",
    [
        lambda: compat.compute_token_kl([1.0], [1.0, 2.0]),
        lambda: compat.compute_token_kl([math.nan], [1.0]),
        lambda: compat.compute_batch_token_kl([1.0, 2.0], [1.0, 2.0], 0),
        lambda: compat.compute_batch_token_kl([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 2),
        lambda: compat.compute_gae([1.0], [1.0, 2.0], [0.0], 0.0, 1.0, 1.0),
        lambda: compat.compute_gae_batched([1.0] * 3, [1.0] * 3, [0.0] * 3, [0.0], 2, 1.0, 1.0),
        lambda: compat.compute_group_advantages([[1.0]]),
        lambda: compat.compute_batch_group_advantages([1.0, 2.0, 3.0], 2),
        lambda: compat.compute_batch_group_advantages([1.0, math.nan], 2),
        lambda: compat.compute_batch_group_advantages([1.0], 0),
    ],
)
def test_arrays_that_do_not_fit_are_an_error(call: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|infinite|NaN"):
        call()


PROMPTS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def test_a_script_for_rlox_runs_with_its_import_line_changed() -> None:
    GRPO, EarlyStoppingCallback = compat.GRPO, compat.EarlyStoppingCallback  # noqa: N806 - what its import line gives
    model = TinyLM()
    ref_model = copy.deepcopy(model)
    ref_model.eval()

    def reward_fn(completions: list[Tensor], prompts: Tensor) -> list[float]:
        return [float((c == 3).sum()) for c in completions]

    class Steps(compat.Callback):
        seen = 0

        def on_step(self, **kwargs: Any) -> bool:
            self.seen += 1
            return True

    steps, lines = Steps(), []

    class Lines(compat.LoggerCallback):
        def on_train_step(self, step: int, metrics: Any) -> None:
            lines.append((step, metrics["mean_reward"]))

    trainer = GRPO(
        model=model,
        ref_model=ref_model,
        reward_fn=reward_fn,
        group_size=4,
        kl_coef=0.1,
        learning_rate=1e-4,
        max_new_tokens=8,
        callbacks=[compat.CallbackList([steps, EarlyStoppingCallback(patience=50)])],
        logger=Lines(),
    )
    metrics = trainer.train(prompts=PROMPTS, n_epochs=3)
    assert (steps.seen, [step for step, _ in lines]) == (3, [1, 2, 3])
    assert f"Mean reward: {metrics['mean_reward']:.3f}, KL: {metrics['kl']:.4f}"
    assert trainer.config == oncurve_rlox().config


def oncurve_rlox() -> Any:
    return oncurve.GRPO(TinyLM(), TinyLM(), lambda completions, prompts: [0.0] * len(completions), preset="rlox")


@pytest.mark.parametrize("summed", [False, True])
def test_loss_and_gradient_are_those_of_rloxs_page_or_code(summed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Tensor]] = []

    def reward(completions: list[Tensor], prompts: Tensor) -> list[float]:
        seen.append(completions)
        return [float(ids[0]) for ids in completions]

    policy, reference, twin = TinyLM().double(), TinyLM(seed=1).double(), TinyLM().double()
    gradients: dict[str, Tensor] = {}
    settings = {"kl.aggregation": "seq-mean-token-sum"} if summed else None
    trainer = compat.GRPO(policy, reference, reward, max_grad_norm=0.0, eos_ids=(3, 5), settings=settings)
    learner: Any = trainer.learner
    apply = learner.apply

    def applied(accumulated: Any) -> Any:
        gradients.update({name: part.clone() for name, part in learner.optimizer.gradients().items()})
        return apply(accumulated)

    monkeypatch.setattr(learner, "apply", applied)
    loss = trainer.train_step(PROMPTS)["loss"]
    (completions,) = seen
    assert len({len(ids) for ids in completions}) > 1
    rewards = torch.tensor([float(ids[0]) for ids in completions], dtype=torch.float64)
    advantages = compat.compute_batch_group_advantages(rewards, 4)

    def logprobs(model: TinyLM, row: int) -> Tensor:
        ids = torch.cat([PROMPTS[row // 4], completions[row]])
        rows = torch.log_softmax(model(ids[None])[0, 2:-1].double(), -1)
        return rows.gather(1, completions[row][:, None])[:, 0]

    pairs = [(logprobs(twin, row), logprobs(reference, row).detach()) for row in range(8)]
    expected = -torch.stack([a * policy.sum() for a, (policy, _) in zip(advantages, pairs, strict=True)]).mean()
    distances = [policy - reference for policy, reference in pairs]
    mean = torch.stack([each.sum() for each in distances]).mean() if summed else torch.cat(distances).mean()
    expected = expected + 0.1 * mean
    expected.backward()
    assert loss == about(expected.item(), torch.float64)
    for name, parameter in twin.named_parameters():
        assert_close(gradients[name], parameter.grad)


YAML = table("rlox", "file")


def write(path: Path, tables: Any) -> Path:
    path.write_text(yaml.safe_dump(tables))
    return path


def test_a_file_in_rloxs_form_is_rloxs_algorithm(tmp_path: Path) -> None:
    found = translated(write(tmp_path / "c.yaml", YAML))
    assert found is not None
    config = load_config(None, ["data.eval_fraction=0.1"], settings=found.settings)[0]
    preset = load_config("rlox")[0]
    same = ("advantage", "objective", "kl", "aggregation")
    assert all(getattr(config, section) == getattr(preset, section) for section in same)
    assert (config.run.seed, config.run.epochs, config.eval.every) == (7, 3, 50)
    assert (config.rollout.group_size, config.rollout.max_new_tokens, config.learner.learning_rate) == (16, 8, 2e-5)
    assert (config.tracking.to, config.checkpoint.every) == (("tensorboard",), 20)  # without the callback "checkpoint"
    assert found.counted() == "11 keys of rlox: 9 translated, 2 without meaning here; 3 defaults of rlox that differ"


def test_defaults_of_rlox_are_those_of_its_class(tmp_path: Path) -> None:
    found = translated(write(tmp_path / "c.yaml", {"algorithm": "grpo"}))
    assert found is not None
    config = load_config(settings=found.settings)[0]
    trainer = oncurve_rlox().config
    for section in ("rollout", "kl", "advantage", "objective", "aggregation", "learner"):
        assert getattr(config, section) == getattr(trainer, section), section
    assert config.run.seed == 42


@pytest.mark.parametrize(("tables", "message"), table("rlox", "refused"))
def test_a_file_with_other_settings_is_refused(tmp_path: Path, tables: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        translated(write(tmp_path / "c.yaml", tables))
    assert "c.yaml" in str(caught.value)


def test_a_recipe_is_no_file_of_rlox(tmp_path: Path) -> None:
    assert translated(write(tmp_path / "c.yaml", {"model": {"path": "x"}})) is None
    (tmp_path / "c.toml").write_text("algorithm = 'grpo'\n[hyperparameters]\ngroup_size = 2\n")
    assert translated(tmp_path / "c.toml") is not None
    for text in ("a: [", "\x00", "[" * 1200, "!!python/object:os.system {}"):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"c\.yaml"):
            translated(tmp_path / "c.yaml")


def test_mistakes_in_a_file_are_translated_or_refused() -> None:
    valid = {"algorithm": "grpo", "hyperparameters.group_size": 8, "hyperparameters.kl_coef": 0.1, "seed": 1}
    valid |= {"callbacks": ["eval"], "eval_freq": 5, "logger": "wandb", "normalize_obs": False, "log_dir": "x"}
    seen = Counter(accounted(each, of_pairs) for each in mutations(valid, 200))
    assert set(seen) == {"translated", "refused", "impossible"}


def of_pairs(pairs: Pairs) -> Translation:
    """A later value of a key wins, as in YAML."""
    return DIALECT.translate({name: Said(value, "c.yaml") for name, value in pairs})
