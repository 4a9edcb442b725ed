"""A network's operations as a graph: recorded, traced, run, and one table of what each operation is."""
