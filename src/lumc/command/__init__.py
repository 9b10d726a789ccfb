"""The passes between files, and what is done with bundles."""
