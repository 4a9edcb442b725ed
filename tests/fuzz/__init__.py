"""Inputs that nobody thought of: `make fuzz MINUTES=5`; a few of each in `make test` and `make test-all`."""
