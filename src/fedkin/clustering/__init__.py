"""Points in, labels and path out; never hears of models or clients."""

from fedkin.clustering.kmeans import Clusters, kmeans

__all__ = ["Clusters", "kmeans"]
