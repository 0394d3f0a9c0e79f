"""Makes the helper of these tests importable by name."""

import sys
from pathlib import Path

collect_ignore = ["dumps.py", "kinds.py", "kinds_of_engines.py"]
sys.path.insert(0, str(Path(__file__).parent))
