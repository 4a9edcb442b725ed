"""One search by any method: what it needs, models one after the other where it takes two, what was found."""
