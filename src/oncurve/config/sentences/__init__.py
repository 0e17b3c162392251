"""Sentences about a configuration: the plan, its notes, and the objective as an equation."""
