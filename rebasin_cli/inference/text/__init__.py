"""What was found, as text: names, families, the spec's own notation, and reasons."""
