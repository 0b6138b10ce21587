"""What takes too long for every run: `make campaign` runs it."""

from __future__ import annotations

import os
from typing import Final

import pytest

CAMPAIGN: Final = bool(os.environ.get("WBKV_CAMPAIGN"))
"""Whether this is one."""
campaign = pytest.mark.skipif(not CAMPAIGN, reason="set WBKV_CAMPAIGN: make campaign does")
