"""One partition: append, roll, fsync, truncate, let segments go, read; its producers; how it is opened."""
