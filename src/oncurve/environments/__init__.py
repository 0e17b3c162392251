"""Episodes: an environment replies to what the policy writes, and its replies are context that is not trained on.

settings.py   `[environment]`: the kinds, and the limits of their workers
engine.py     `EpisodeEngine`: a rollout engine whose completions have turns, over any other engine
dialogue.py   token ids of what an environment says, after what the policy has sampled
host.py       the worker processes in which environments run
play.py       what runs in such a worker; episode.py is its protocol, tools.py and the others are the shapes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.environments.dialogue import Dialogue as Dialogue
    from oncurve.environments.engine import EpisodeEngine as EpisodeEngine
    from oncurve.environments.episode import Episode as Episode, Reply as Reply, ToolCall as ToolCall
    from oncurve.environments.host import Host as Host
    from oncurve.environments.settings import (
        ENVIRONMENT_KINDS as ENVIRONMENT_KINDS,
        EnvironmentSettings as EnvironmentSettings,
        NoEnvironment as NoEnvironment,
        Tools as Tools,
        environment_meant as environment_meant,
    )
    from oncurve.environments.trial import rehearsed as rehearsed

__getattr__, _ = lazily(__name__)  # a worker imports its own side alone
