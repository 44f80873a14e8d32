"""`python -m gpufrag` and the `gpufrag` command."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
