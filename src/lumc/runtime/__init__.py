"""How bundles run from Python."""
