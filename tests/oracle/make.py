"""Write a named checkpoint: `python tests/oracle/make.py granite_small DIR`.

The names of `baton.bench.checkpoints` need no transformers; those of `oracle.specs` do.
"""

import argparse
import sys
from pathlib import Path

from baton.bench.checkpoints import GRANITE_SMALL, HYBRID_191M, write_checkpoint

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from oracle.checkpoints import make_checkpoint
    from oracle.specs import SPECS

    configs = {"granite_small": GRANITE_SMALL, "hybrid_191m": HYBRID_191M}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=[*configs, *SPECS])
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.name in configs:
        write_checkpoint(arguments.folder, configs[arguments.name])
    else:
        make_checkpoint(SPECS[arguments.name], arguments.folder)
