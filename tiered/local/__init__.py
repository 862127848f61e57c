"""The hot tier: a log directory in Kafka's format. The only code that opens log files."""
