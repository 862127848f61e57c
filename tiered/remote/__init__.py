"""The cold tier, on any store: catalog, uploads, reads. Protocols are steps without I/O (``store.base``)."""
