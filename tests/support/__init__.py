"""Builders of logs and buckets that tests of several folders share."""
