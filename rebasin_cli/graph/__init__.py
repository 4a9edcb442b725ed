"""A network's operations as a graph: recorded, traced, and what each operation is."""
