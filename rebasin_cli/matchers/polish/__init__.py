"""The last stage of any search: swaps of two units, tried on the true loss of the models' mean. No method."""
