"""Garbage is seldom looked for: a fifth of the time of tests that trace went into two million old objects.

What survives 60,000 new objects is looked through again after three million. What is there when the tests
begin never is (see conftest).
"""

import gc

gc.set_threshold(3_000, 20, 50)
