"""How a kernel runs: the tile program, and the passes on it."""
