"""Episodes: an environment replies to what the policy writes, and its replies are context that is not trained on.

settings.py   `[environment]`: the settings, and the limits of the workers; kinds.py names them.
turns.py      `TurnsEngine`: a rollout engine for completions of several turns, over any other engine.
engine.py     `EpisodeEngine`: an environment replies to each turn.
dialogue.py   tokens of an environment's messages.
host.py       the workers, as the run sees them.
play.py       the callable of a worker, its random numbers, and the loop of its coroutines. episode.py is its
              protocol, tools.py TRL's shape of it, games.py those of others.
programs.py   `Programs`: programs call the policy at endpoint.py. program.py runs them in a worker.
"""

from typing import TYPE_CHECKING

from oncurve.base.lazy import lazily

if TYPE_CHECKING:
    from oncurve.environments.dialogue import Dialogue
    from oncurve.environments.episode import Episode as Episode, Reply as Reply, ToolCall
    from oncurve.environments.episode_engine import EpisodeEngine
    from oncurve.environments.host import Host, asked, rehearsed
    from oncurve.environments.kinds import ENVIRONMENT_KINDS
    from oncurve.environments.programs import Programs
    from oncurve.environments.settings import Endpoint, EnvironmentSettings, NoEnvironment, Tools, environment_meant
    from oncurve.environments.tools import ToolsEpisode

__getattr__, _ = lazily(__name__)  # a worker imports its own side, without torch
