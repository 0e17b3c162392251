"""Other tools' dialects, on top of the same rooms."""
