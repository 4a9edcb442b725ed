"""One file a data set: what `--data NAME` names, and what several of them share, behind an underscore."""
