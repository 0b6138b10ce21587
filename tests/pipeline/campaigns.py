"""What takes too long for every run: `make campaign` runs it."""

from __future__ import annotations

import os

import pytest

campaign = pytest.mark.skipif(
    not os.environ.get("WBKV_CAMPAIGN"), reason="set WBKV_CAMPAIGN: make campaign does"
)
