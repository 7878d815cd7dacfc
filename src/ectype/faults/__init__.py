"""Known faults, made one at a time in a small reproduction, and what catches each of them."""
