"""Measurements of several processes."""
