"""What a training pipeline is and what may happen to it: a job, and the model it leaves. Pure."""
