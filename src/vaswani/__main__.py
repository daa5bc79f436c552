"""``python -m vaswani`` is the console command ``vaswani``."""

import sys

from vaswani.cli import main


if __name__ == "__main__":
    sys.exit(main())
