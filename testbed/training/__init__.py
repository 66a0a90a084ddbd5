"""Training: models, data, device profiles and the virtual-time trainer."""
