"""Tokens to batches: the index (I/O), the order (step to window ids), the loader (Grain), the ledger and its audit."""
