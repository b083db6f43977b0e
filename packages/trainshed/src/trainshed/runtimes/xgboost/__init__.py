"""XGBoost with scikit-learn, for the XGBoost images."""
