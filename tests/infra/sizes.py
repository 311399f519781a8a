"""Size of tests that take minutes: small by default, whole with `QUIRE_FULL_SIZE=1` (`just full`, nightly suites)."""

import os

IS_FULL_SIZE = bool(os.environ.get("QUIRE_FULL_SIZE"))
