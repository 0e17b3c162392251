"""The run directory: how it is made, named, identified, listed, and continued with other settings."""
