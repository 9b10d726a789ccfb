"""What is in the files between passes."""
