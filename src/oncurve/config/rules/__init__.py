"""Rules between settings: impossible combinations, keys without effect, and what a run still lacks."""
