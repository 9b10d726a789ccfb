"""Where candidates run, and what the machine can do."""
