"""``python -m uploader``: the same as ``tiered-uploader``."""

from __future__ import annotations

from uploader.cli import main

if __name__ == "__main__":
    main()
