"""XGBoost with scikit-learn: stands for the XGBoost images."""
