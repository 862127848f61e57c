"""The command line ``tiered``: one command a file, text and JSON from the same data.

stdout is data, stderr is talk. ``main`` turns every ``TieredError`` into one sentence and its exit code (the table in
``tiered.errors``); a traceback appears with ``--debug`` only. What the commands share is in ``tiered.program``.
"""
