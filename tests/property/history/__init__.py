"""Random histories of everything that the hot tier does, beside a log that is always right.

``world`` holds the directories and their models, ``checks`` compares them, ``acts_*`` are what may happen, ``story``
throws the dice and keeps the trace.
"""
