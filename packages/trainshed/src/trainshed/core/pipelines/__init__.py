"""What a training pipeline is and what may happen to it: it runs one job and registers its model. Pure."""
