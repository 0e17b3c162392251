"""The whole configuration of a run: its sections, where they come from, what is impossible, and what it says.

sections.py   the sections and their defaults     layers.py      presets, recipes and overrides, one over another
loading.py    files and tables to a `RunConfig`   schema.py      what a key may be, and what to say of one that is not
rules/        what is impossible, missing, inert; the columns that rewards read; a rule's sentence is in a TOML file
sentences/    the plan and its notes, by templates; the objective as an equation; what a key means
arguments.py  arguments of Python functions as keys
starting.py   shipped recipes as files of one's own
trust.py      what a folder from elsewhere brings

Loaded lazily: importing this package imports none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy  # before torch, whose C code imports it and would swallow an interrupt that comes meanwhile

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.config.arguments import check_argument_names, explains_arguments, tables_of
    from oncurve.config.layers import (
        CODE_PATH,
        FILE_KEYS,
        MODULE_PATH,
        Layer,
        find_recipe,
        names_model,
        names_recipe,
        read_layers,
        read_table,
        yaml_node,
    )
    from oncurve.config.loading import brought_by, default_tables, load, load_config as load_config, to_tables, to_toml
    from oncurve.config.rules.combinations import (
        check_columns,
        check_complete,
        check_config,
        inert_rules,
        trials_on,
        try_rewards,
    )
    from oncurve.config.schema import IN_MEMORY, Schema, Section
    from oncurve.config.sections import RUN, CheckpointSettings, RunConfig
    from oncurve.config.sentences.plan import (
        AdapterFacts,
        RunFacts,
        explain as explain,
        explain_key,
        plan,
        sentences_of,
    )
    from oncurve.config.starting import write_recipe
    from oncurve.config.trust import MADE_HERE, SIGNATURES, signatures, unsigned


__getattr__, __all__ = lazily(__name__)
