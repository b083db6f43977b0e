import json
import pkgutil

import pkg_resources
from sklearn.base import BaseEstimator, TransformerMixin


class LexiconFeatures(BaseEstimator, TransformerMixin):
    """Sums of the words' values in the lexicon that comes with the package."""

    def __init__(self):
        self.lexicon = json.loads(pkgutil.get_data("sentiment", "lexicon.json").decode("utf-8"))
        stop = pkg_resources.resource_string("sentiment.resources", "stopwords.txt")
        self.stopwords = set(stop.decode("utf-8").split())

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        rows = []
        for text in X:
            words = [word for word in text.lower().split() if word not in self.stopwords]
            values = [self.lexicon.get(word, 0.0) for word in words]
            rows.append([sum(values), max(values, default=0), min(values, default=0), len(words)])
        return rows
