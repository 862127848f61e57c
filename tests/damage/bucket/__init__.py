"""A damaged bucket: every damage meets every action; none is passed over in silence, none hangs."""
