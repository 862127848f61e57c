"""The command line ``tiered``: one command per file, text and JSON from the same data.

stdout is data, stderr is talk. ``main`` turns every ``TieredError`` into one sentence and its exit code (the table in
``tiered.errors``); a traceback appears with ``--debug`` only. ``settings`` knows where each value came from: flag, then
``TIERED_*``, then the TOML file, then the default.
"""
