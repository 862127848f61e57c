"""Bytes that a real Kafka broker wrote, and what it says about them."""
