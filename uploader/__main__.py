"""Run ``tiered-uploader`` by ``python -m uploader``."""

from __future__ import annotations

from uploader.start import main

if __name__ == "__main__":
    main()
