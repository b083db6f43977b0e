from sklearn.metrics import explained_variance_score


def explained(model, features, targets):
    return explained_variance_score(targets, model.predict(features))
