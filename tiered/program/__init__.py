"""Code that the programs share: start and end, settings, error texts, output, and opening a log.

``run`` is imported before the streams of the process are in order: import nothing here.
"""
