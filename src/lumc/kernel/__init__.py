"""What one kernel is."""
