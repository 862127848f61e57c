"""Failed requests: the k-th request of a scenario fails in every way that a store has; then the log must heal."""
