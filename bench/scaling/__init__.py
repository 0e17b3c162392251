"""Published step times of asynchronous training next to simulated ones: docs/scaling.md."""
