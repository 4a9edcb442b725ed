"""Which group a word takes beyond an order: both sides of each place, related by each operation."""
