"""``python -m slowlink``: the command ``slowlink``."""

import sys

from slowlink.cli import main

if __name__ == "__main__":
    sys.exit(main())
