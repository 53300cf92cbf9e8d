"""`python -m sfctr` is the command `sfctr`."""

import sys

from sfctr.cli.main import main

sys.exit(main())
