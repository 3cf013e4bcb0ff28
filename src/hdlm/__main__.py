"""`python -m hdlm`: the command line."""

import sys

from hdlm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
