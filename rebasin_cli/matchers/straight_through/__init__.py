"""The engine of `ste` and `ste-mm`: mixtures, dummies and the permutations that follow them."""
