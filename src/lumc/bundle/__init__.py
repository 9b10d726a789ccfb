"""The format of bundles, written and read."""
