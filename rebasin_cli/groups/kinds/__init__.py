"""One group a file, named as a spec writes it; each has a `GROUP`."""
