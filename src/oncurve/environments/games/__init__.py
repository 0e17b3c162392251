"""Adapters of other packages' games: each a kind of `[environment]`, and an extra of the package.

game.py      what they share: text in, text out; a reward for each turn, or for the game
gym_text.py  Gymnasium with text      textarena.py  TextArena, one player
skyrl_gym.py  skyrl-gym               openenv.py    a server that speaks OpenEnv's protocol
"""
