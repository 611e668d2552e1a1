"""How many examples a property is tried with: all in CI, two fifths elsewhere.

What a fifth example in a row does not find is seldom found by the two hundredth; CI and `make mutants` look for that, too.
"""

import os

THOROUGH = bool(os.environ.get("CI"))


def examples(most):
    return most if THOROUGH else most * 2 // 5
