"""Ectype reproduces an open pre-training run in JAX and proves that the result is the same model."""

__version__ = "0.1.0"
