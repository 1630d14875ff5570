"""`python -m relive` is `relive`."""

import sys

from relive.tools import cli

if __name__ == "__main__":
    sys.exit(cli.main())
