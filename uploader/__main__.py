"""``python -m uploader``: the same as ``tiered-uploader``."""

from __future__ import annotations

from uploader.start import main

if __name__ == "__main__":
    main()
