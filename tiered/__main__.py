"""``python -m tiered`` is the command ``tiered``."""

from __future__ import annotations

from tiered.cli.start import main

if __name__ == "__main__":
    main()
