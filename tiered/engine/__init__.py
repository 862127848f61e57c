"""The engine that carries sealed segments from a log directory to the bucket."""
