"""The decoder: pure functions and NNX modules over one parameter tree. Maths only: no files, no clock."""
