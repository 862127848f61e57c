"""Command line ``tiered``: one file per command. Text and JSON come from the same data.

stdout has only data, stderr only messages. ``main`` prints each ``TieredError`` as one sentence and returns its exit
code (the table in ``tiered.errors``). A traceback appears with ``--debug`` only. Shared parts of the commands are in
``tiered.program``.
"""
