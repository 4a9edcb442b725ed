"""Units: labels of the positions on an axis, their expressions, and which of them are one."""
