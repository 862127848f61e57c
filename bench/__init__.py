"""Figures as ratios inside one run (``make bench``): ours and a peer take turns, the least CPU time counts."""
