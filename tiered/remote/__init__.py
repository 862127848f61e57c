"""Cold tier on any store: catalog, uploads, reads. Protocols are steps without I/O (``store.base``).

Order of writes, the one commit, and what a crash after each step leaves:

======================================  =================================================================
step                                    a crash after it leaves
======================================  =================================================================
claim: PUT root If-Match, epoch + 1     a claim; the next one fences it and settles its open commit
PUT ``.log`` (create-only)              an orphan whose key carries an epoch that the next claim makes dead
PUT ``.idx`` (create-only)              two orphans
verify size and CRC32C                  the same
**PUT root If-Match (append)**          **the commit: from here on every reader sees the rows**
GET root (read back)                    permission for the local tier to delete what the root covers
======================================  =================================================================

Keys (relative to the store's URL), ``h2`` a hash of topic id and partition so that stores can split prefixes::

    topics/{topic}                                             registry entry, compare-and-swap
    {h2}/{topic_id}-{partition}/root                           the root, compare-and-swap
    {h2}/{topic_id}-{partition}/s/{role}{epoch}/{base}-{uid}.log    byte-identical to the sealed local file
    {h2}/{topic_id}-{partition}/s/{role}{epoch}/{base}-{uid}.idx    descriptor and trimmed indexes

``catalog`` commits under a claim of ``committer``, ``conditional_put`` changes objects, ``upload`` stores a segment,
``reader`` reads batches through one pinned root, ``topics`` keeps the registry. Only ``gc``, ``pins`` and
``root_history`` delete objects. Nothing here opens a log file.
"""
