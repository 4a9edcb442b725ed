"""The ways to merge, one a file: plain averages, soups, points of curves, heads of other sizes."""
