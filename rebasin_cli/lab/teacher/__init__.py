"""Students of a teacher in closed form: their loss, their minima, how those are matched and reached.

The teacher is the sum of k ReLU units, one a coordinate; a student is the sum of m ReLU units, the rows of a
matrix (m, d), and x is Gaussian. All functions take any number of students at once, float64 (..., m, d).
"""
