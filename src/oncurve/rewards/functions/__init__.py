"""Checks of answers, formats and lengths, and the functions of users."""
