"""Files of a log as JSON, as text, or in the format of Kafka's dump tool: ``tiered inspect``."""
