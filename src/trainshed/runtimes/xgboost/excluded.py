"""What XGBoost asks for and CPUs have no use for."""

NCCL = ("nvidia-nccl-cu12",)
"""Connects several GPUs, in 300 MB; XGBoost loads it only then."""
