"""The same engine beside a real Kafka broker: its sealed segments as hard links in a private directory."""
