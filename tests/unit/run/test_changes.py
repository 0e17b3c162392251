"""What a resume says of settings that have changed."""

import pytest

from fakes.tables import table
from oncurve.base.errors import ConfigError
from oncurve.config.loading import load_config
from oncurve.run.directory.changes import changes_between, check_changes, worth_saying

RECIPE = "rewards=[{kind='task'}]"


@pytest.mark.parametrize(
    ("before", "now", "said"), table("changes", "another_kind_is_said_without_the_keys_that_come_and_go_with_it")
)
def test_another_kind_is_said_without_the_keys_that_come_and_go_with_it(
    before: list[str], now: list[str], said: list[str]
) -> None:
    old, new = (load_config(None, [RECIPE, *words])[0] for words in (before, now))
    assert [str(change) for change in worth_saying(changes_between(old, new), new)] == said


FSDP = ["cluster.sharding=fsdp", "cluster.learner_ranks=2"]


@pytest.mark.parametrize("other", [["cluster.kind=none"], ["cluster.learner_ranks=2"]])
@pytest.mark.parametrize("there", [True, False])
def test_a_state_in_parts_does_not_become_a_whole_one_nor_the_other_way_round(other: list[str], there: bool) -> None:
    before, now = (load_config(None, [RECIPE, *words])[0] for words in ((other, FSDP) if there else (FSDP, other)))
    changes = changes_between(before, now)
    with pytest.raises(ConfigError, match=r"cluster\.sharding: cannot become .* in a resume: .* begin a new run"):
        check_changes(before, now, changes, done=1)
    check_changes(before, now, changes, done=0)  # there is no checkpoint yet
