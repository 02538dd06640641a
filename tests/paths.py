"""Where things lie: the checkout, its groups of settings, and the real data outside of it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
DATA = Path(os.environ.get("AGENTRL_DATA", ROOT.parent / "shared" / "data"))
