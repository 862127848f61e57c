"""The whole of both tiers in one simulation: product code on fakes of clock, store and disk, replayed from a seed."""
