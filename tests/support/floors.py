"""The floors that there are: the reference, and the fast one unless it was deleted (`make test-reference`)."""

import importlib.util

FLOORS = ["fast", "reference"] if importlib.util.find_spec("hdlm.fast") else ["reference"]
