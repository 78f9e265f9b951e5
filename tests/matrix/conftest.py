from __future__ import annotations

import sys
from pathlib import Path

# The step tier's parts without torch. Behind everything else: what lies there is made for another environment.
sys.path.append(str(Path(__file__).resolve().parents[1] / "parity"))
