"""What can be said of several models together: their simplex, geometry, cycles and sharpness.

One file a subject, each of plain functions on tensors and scores; `comparison` puts them together, and
`tables` into words. Nothing here opens a file or prints.
"""

from __future__ import annotations
