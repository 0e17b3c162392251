"""`docs/performance.md` from the committed results."""
