"""`python -m sfctr` is the command `sfctr`."""

import sys

from .cli.main import main

sys.exit(main())
