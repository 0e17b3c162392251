"""Sentences about a configuration: the plan with its notes, the objective as an equation, the meaning of a key."""
