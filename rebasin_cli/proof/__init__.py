"""A spec proven on a network: drawn elements, applied, and outputs compared. Nothing here infers."""
