"""How a kernel may run."""
