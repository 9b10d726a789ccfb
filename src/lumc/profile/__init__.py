"""Which programs and schedules are fastest, and what was measured."""
