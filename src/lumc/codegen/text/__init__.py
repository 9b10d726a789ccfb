"""How a tile program is said, whatever the dialect of C."""
