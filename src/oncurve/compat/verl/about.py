"""What docs/coming-from.md says of verl, before the table of its settings."""

from __future__ import annotations

from oncurve.compat.shell import SCRIPTS
from oncurve.compat.verl.reward import CHECKERS, NO_CHECKER


def _checkers() -> str:
    """The table of `data_source`."""
    rows = [f"| `{source}` | `{each.table['kind']}` | {each.note} |" for source, each in CHECKERS.items()]
    rows.append(f"| `aime...` | `{CHECKERS['math'].table['kind']}` | {CHECKERS['math'].note} |")
    rows += [f"| `{source}` | refused | {why} |" for source, why in NO_CHECKER.items()]
    return "\n".join(["| `data_source` | reward | difference |", "|---|---|---|", *rows])


ABOUT = f"""\
`oncurve train --verl` takes what comes after `python3 -m verl.trainer.main_ppo`, a script that has this call, or a YAML
file; settings after the file win:

```bash
oncurve train --verl algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=5 data.train_files=train.parquet ...
oncurve train --verl run_qwen.sh trainer.total_epochs=1
oncurve config from-verl run_qwen.sh --out mine.toml
```

The first lines of the output say how many settings were translated, and what differs; `config from-verl` prints the
whole as a recipe with a comment per setting.

{SCRIPTS}

What is the same: the rows of the parquet files and an unchanged `compute_score`; batch sizes, in prompts; the names of
`loss_agg_mode`; the formulas of the advantages and of the KL estimators. verl's defaults hold where they are not
oncurve's: `weight_decay` 0.01, the dual clip 3.0, no KL term, one completion per prompt, gae.

What verl writes and does not do: `clip_ratio` has no effect in verl next to `clip_ratio_low` and `clip_ratio_high`,
which have defaults; here it counts for each side that is not given. `actor.grad_clip` is read nowhere in verl 0.9,
`optim.clip_grad` is. `kl_loss_type=full` raises NotImplementedError there, and is the exact KL here. `low_var_kl` is
clamped at 10 in verl, which takes the gradient away; here it is not.

The run's folder is `trainer.default_local_dir` (by default `checkpoints/PROJECT/EXPERIMENT`) or `--out`, and with
`trainer.resume_mode=auto`, verl's default, the command continues the run that is there. Paths are relative to the
working directory.

What is better left out: the sizes of micro-batches per GPU, everything about workers, engines and sharding. They have
no meaning here, and none of them changes a result; a name of any version of verl is taken there. `[cluster]` shares
updates and samples among processes, divides the model, and has vLLM. `trainer.logger` is taken only where it is given.

Without a reward function verl chooses one by the column `data_source`:

{_checkers()}

Rows of several sources that are 0 and 1 in verl have `math`, which checks `####` and `\\boxed{{}}`. Where the files
cannot be read, as on another machine, the recipe has `math` too.
"""
