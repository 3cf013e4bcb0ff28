"""One server for all tests of a file that do not need one of their own."""

import pytest
from support.bundles import bundle
from support.server import serving


@pytest.fixture(scope="session")
def models():
    """A hybrid with an end of text, and an aligned network that fills no long gap."""
    return {
        "hybrid": bundle(process="epsilon", eos_id=2),
        "masked": bundle("flat", process="absorbing"),
        "aligned": bundle(process="absorbing", shifted=False),
    }


@pytest.fixture(scope="session")
def server(models):
    with serving(models) as client:
        yield client
