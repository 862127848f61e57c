"""Upload engine for a real Kafka broker: the broker's sealed segments as hard links in a private directory."""
