"""Experiments: their claims, their mathematics, and that each of them runs."""
