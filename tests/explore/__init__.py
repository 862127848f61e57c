"""Every interleaving of the real protocol steps within a bound (``make explore``): see ``docs/exploration.md``."""
