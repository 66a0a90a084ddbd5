"""Pieces that codecs compose: wire frames, packing, sampled thresholds, error feedback."""
