"""`python -m baton.bench.gpu`."""

import sys

from baton.bench.gpu.run import main

if __name__ == "__main__":
    sys.exit(main())
