"""What each of several ranks does of a graph, and what they exchange."""
