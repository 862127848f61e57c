"""What the programs share: how they begin and end, settings, the wording of errors, output, and the doors to a log.

``run`` is imported before the streams of the process are in order: nothing may be imported here.
"""
