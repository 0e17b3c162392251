"""The kinds of environments, by their names in a configuration."""

from oncurve.components import Component
from oncurve.environments.games import GymText, OpenEnv, SkyRLGym, TextArena
from oncurve.environments.settings import Endpoint, NoEnvironment, Tools

ENVIRONMENT_KINDS: dict[str, type[Component]] = {
    "none": NoEnvironment,
    "tools": Tools,
    "endpoint": Endpoint,
    "gym_text": GymText,
    "textarena": TextArena,
    "skyrl_gym": SkyRLGym,
    "openenv": OpenEnv,
}
