"""Downstream tasks: a scoring and generation engine in JAX, and its connection to lm-evaluation-harness."""
