"""Specs without writing one: follow the units of a network through its exported graph."""

from .inferring import infer
from .text.writing import Frozen, Inferred

__all__ = ["Frozen", "Inferred", "infer"]
