"""What the files of a log hold, as JSON, for people, or as Kafka's own dump tool prints it: ``tiered dump-segment``."""
