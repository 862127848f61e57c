"""Repair of a bucket or a log directory: finds damage, makes a plan, shows it, asks, and carries it out."""
