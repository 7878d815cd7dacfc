"""The run folder: where its files lie, which checkpoints count, its metrics, and its records."""
