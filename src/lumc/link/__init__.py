"""How code ships: compilers, and the native runner."""
