"""Output of ``tiered inspect``: files of a log as JSON, as text, or in the format of Kafka's dump tool."""
