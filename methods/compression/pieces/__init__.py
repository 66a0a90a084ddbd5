"""Pieces that codecs compose: sampling, error feedback, momentum correction, packing."""
