"""Specs without writing one: follow the units of a network through its exported graph."""

from .inferring import Frozen, Inferred, infer

__all__ = ["Frozen", "Inferred", "infer"]
