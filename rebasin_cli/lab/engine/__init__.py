"""What experiments share: parameters, claims and their verdicts, progress, the page and its picture."""
