"""What each operation does to labels, and the walk through the graph that applies it."""
