"""The convention and its algebra, the assignment problem, and averages of models."""
