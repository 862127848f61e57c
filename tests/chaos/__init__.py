"""Real processes behind a network that breaks requests, killed and stopped at random: ``make chaos``.

Hosts (a writer each, and whoever uploads for it), two maintainers and two readers run against a real server through
the fault proxy. What they acknowledge and see is noted outside of the log; at the end the faults stop, all drains, and
the bucket is held against the notes (``ledger``): every record of a plain topic, the last value of each key of a
compacted one, only and all committed records of one with transactions, which readers ask for as committed. Dice of a
printed seed choose the events and the faults; threads and processes run as they like, so that a seed repeats the kind
of a run, not its moments.
"""
