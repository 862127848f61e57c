"""The main job, end to end, on the flights of New York in 2013: ``make demo``.

append (one process) + upload (the daemon, killed once) -> the disk is lost -> everything read back from the
store alone -> one aircraft found by key and time -> a local log restored and appended to -> a Spark query.
Second act: the flights stream through Spark (killed once) into a topic of each aircraft's position -> the topic is
compacted -> exported to Parquet.
Each claim is compared with the CSV itself; anything that differs ends the run with status 1.
"""
