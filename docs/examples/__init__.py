"""Extras for rebasin: what a package with entry points looks like."""

from pathlib import Path

SMALLNET = Path(__file__).with_name("smallnet.yaml")
