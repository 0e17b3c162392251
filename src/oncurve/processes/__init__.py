"""Processes: the pool of workers that run user code, and the fleets of a cluster."""
