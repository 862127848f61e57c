"""Run the command ``tiered`` by ``python -m tiered``."""

from __future__ import annotations

from tiered.cli.start import main

if __name__ == "__main__":
    main()
