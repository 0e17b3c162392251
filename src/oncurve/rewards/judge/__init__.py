"""Rewards from models that an endpoint serves."""
