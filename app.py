"""Tilescope: what does my Triton kernel really do? Runs one of the commands; without one, serves the page.

Worker processes import this file again under another name.
"""

import sys
from pathlib import Path

if sys.flags.safe_path:  # Python has left out this file's folder
    sys.path.insert(0, str(Path(__file__).parent))

from tilescope.__main__ import main

if __name__ == "__main__":
    main()
