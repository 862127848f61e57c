"""Code that both programs share: start and end, settings, error texts, output, and opening a log.

``run`` is imported before the process's standard streams are repaired. Import nothing here.
"""
