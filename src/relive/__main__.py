"""`python -m relive` is `relive`."""

import sys

from relive.cli import command_line

if __name__ == "__main__":
    sys.exit(command_line.main())
