"""Decisions: state, policy and time in, a frozen plan out. No I/O, no clock, no randomness.

A planner is called again whenever its result may have changed, so it must be a pure function of its arguments: the
same root, the same rows, the same ``now_ms`` give the same plan. ``commit`` is the sharpest case: an intent is applied
again to each newer root after a lost race, and refuses where it no longer fits.

============== ====================================================== ===============================
module         decides                                                carried out by
============== ====================================================== ===============================
``roll``       must the active segment be sealed before this append   ``local.partition``
``retention``  which sealed segments may leave the disk               ``local.partition``
``read``       which tier serves which offsets, which bytes           ``stream``, ``remote.reader``
``commit``     the next root, from this one and an intent             ``remote.catalog``
``ownership``  may this volume have the writer's role                 ``plan.commit``
``invariants`` what is true of every root, as sentences               before every PUT, after every GET, ``check``
``cleaning``   which log to compact, which segments, in what groups    the cleaner of a tier
``batch_filter`` which records and batches survive, by ``offset_map``  the cleaner of a tier
``producer_state`` repeated, out of order, fenced, open or aborted     ``check``, the writer
``transactions`` the coordinator's next record and markers             the writer
============== ====================================================== ===============================
"""
