"""Networks as people have them, files that packages ship: from their export to a checked run."""
