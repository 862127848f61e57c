"""The command line ``tiered``: one command a file, text and JSON from the same data.

stdout is data, stderr is messages. ``main`` turns every ``TieredError`` into one sentence and its exit code (the table
in ``tiered.errors``). A traceback appears with ``--debug`` only. Shared parts of the commands are in
``tiered.program``.
"""
