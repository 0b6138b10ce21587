"""`python -m benchmarks` is `wbkv bench`."""

import sys

from benchmarks.command import main

sys.exit(main())
