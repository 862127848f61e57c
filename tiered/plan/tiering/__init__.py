"""Every rule of the engine between the tiers: facts in, orders out. No I/O, no clock, no task."""
