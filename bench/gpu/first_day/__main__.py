"""`python -m baton.bench.gpu.first_day`."""

import sys

from baton.bench.gpu.first_day.run import main

if __name__ == "__main__":
    sys.exit(main())
