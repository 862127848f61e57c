"""Upload engine: it copies sealed segments from a log directory to the bucket and commits them."""
