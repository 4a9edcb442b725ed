"""Specs without writing one: follow the units of a network through its exported graph."""

from .inferring import infer
from .text.spec_text import Frozen, Inferred

__all__ = ["Frozen", "Inferred", "infer"]
