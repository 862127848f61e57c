"""Object stores: one contract (``base``), its backends, and the layers around them.

``location.open_store(url)`` opens a store, ``driver.drive(store, steps)`` runs a protocol on it::

    retry (what is safe to repeat) -> limit (requests/s, bytes/s) -> metrics (every attempt) -> backend (one attempt)

Backends: ``memory`` (reference, tests), ``directory`` (atomic, durable, safe between processes), ``s3`` (boto3) and
``aio_s3`` (aiobotocore). Only the last two import an SDK, each when it is opened.

To add a backend: implement ``execute`` of ``base.Store``, map its errors to the three kinds of the contract, and
subclass ``tiered.testing.store_contract.StoreContract``. The suite is the definition of a store: conditional writes
with five outcomes, ranges, strong reads after writes, batch delete, multipart.
"""
