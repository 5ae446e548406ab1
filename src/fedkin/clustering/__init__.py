"""Points in, labels and path out.

This room owns the clustering of points (m, d): K-means and its relatives, convex clustering with
its certificates and path, and the choice of the number of clusters or of the penalty. It refuses to
know where points come from: it never hears of models, clients or data.

Reading order: `tolerances`, `points`, `kmeans`, `spectral`, `gradient`; then `pairs` (sums over
all pairs), `newton` (the smoothed problem), `contraction` and `fusion` (certificates), `convex`,
`graph`, `recovery`, `path`; then `clusterpath`, `polished`, `scatter`, `choice`.
"""

from fedkin.clustering.choice import NumberOfClusters, choose_n_clusters
from fedkin.clustering.clusterpath import ChosenPenalty, clusterpath
from fedkin.clustering.convex import ConvexClustering, convex_clustering
from fedkin.clustering.gradient import gradient_clustering
from fedkin.clustering.graph import nearest_neighbor_weights
from fedkin.clustering.kmeans import Clustering, kmeans, lloyd
from fedkin.clustering.path import ConvexClusteringPath, convex_clustering_path, penalty_range
from fedkin.clustering.points import silhouette
from fedkin.clustering.polished import PolishedPath, polished_silhouette
from fedkin.clustering.recovery import Interval, oracle_penalty, recovery_interval
from fedkin.clustering.spectral import spectral_kmeans

__all__ = [
    "ChosenPenalty",
    "Clustering",
    "ConvexClustering",
    "ConvexClusteringPath",
    "Interval",
    "NumberOfClusters",
    "PolishedPath",
    "choose_n_clusters",
    "clusterpath",
    "convex_clustering",
    "convex_clustering_path",
    "gradient_clustering",
    "kmeans",
    "lloyd",
    "nearest_neighbor_weights",
    "oracle_penalty",
    "penalty_range",
    "polished_silhouette",
    "recovery_interval",
    "silhouette",
    "spectral_kmeans",
]
