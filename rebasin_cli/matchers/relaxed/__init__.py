"""The engine of pam: doubly stochastic matrices, projected, applied to models, rounded."""
