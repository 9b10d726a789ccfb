"""What happened."""
