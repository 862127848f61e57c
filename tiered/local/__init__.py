"""The hot tier: a log directory in Kafka's format. The only code that opens log files.

::

    data/log/
      .lock                            held by the one process that writes; its note names the holder
      meta.properties                  directory.id: the volume
      tiered-topics.json               our topics: id, partitions, settings
      *-offset-checkpoint              Kafka's: recovery points, log starts, high watermarks, first dirty offsets
      tiered-offset-checkpoint         per partition the end of its records in the bucket, read back by the uploader
      tiered-claims.json               proof that this is the volume which the bucket knows
      tiered-tasks.json                result of each background task, for people
      tiered-positions                 positions of groups, for the uploader
      tiered-seal-request              "roll all partitions", by the uploader; removed by the writer
      flights-0/
        00000000000000000000.log .index .timeindex      sealed: immutable, indexes trimmed
        00000000000000004711.log .index .timeindex      active: indexes preallocated
        *.txnindex *.snapshot                           where there are producers: aborted transactions, producer state
        leader-epoch-checkpoint  partition.metadata
        tiered-sparse tiered-plain                      empty: offsets were left out; no producer ever wrote
      weather-0.{uuid}-delete/         a deleted topic's, removed after file.delete.delay.ms or at the next open
      weather-1.{uuid}-future/         a partition on its way here from another log directory
      weather-2.{uuid}-stray/          a broker's; preserved, never loaded

Guarantees to a caller. ``append`` is atomic: one batch or nothing, also after ``kill -9``; when it returns its bytes
are in the page cache. ``flush`` returns after fsync; an fsync that fails takes the partition offline and is never
repeated as if nothing had happened. A torn tail is copied beside its segment before it is truncated. Damage in a sealed
segment raises an error in the read that reaches it, with path, position and offset. The log still opens, and later
records stay readable. Local bytes are deleted only below a committed end that was read back from the store.

Every effect goes through ``disk.files.Files``, so that tests can tear, fill and fail the disk.

``directory.multi_directory_log.LocalTier`` writes a log over one or several directories;
``directory.log_directory.LocalLog`` writes one. ``directory.read_only_log.LogView`` reads a directory while its writer
or a Kafka broker runs. ``partition.write_log.WriteLog`` is one partition. The packages, from the lowest layer up:
``disk``, ``segment``, ``recovery``, ``partition``, ``cleaning``, ``transactions``, ``directory``.
"""
