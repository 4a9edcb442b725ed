"""Curves between two models: what lies on one, how it is trained, and the file that it is kept in."""
