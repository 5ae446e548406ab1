"""Exact log marginal likelihood of Gaussian processes and its gradient, batched over clients.

With K the covariance of a client's n standardised outcomes y and a = inv(K) y,

    value = (y'a + log det K + n log 2 pi) / 2,    d value = tr[(inv(K) - a a') dK] / 2.

For the fast family no (n, n, d) tensor is ever made: with z = x / length, W = (inv(K) - a a')
times dk/d(log length) / (z_i - z_j)^2 elementwise and r its row sums,

    d value / d log length_l = sum_i r_i z_il^2 - z_l' W z_l.

Clients are packed into buckets of similar size; padding is a unit diagonal and a zero outcome,
which adds nothing. Factor and inverse are LAPACK's potrf and potri, client by client; everything
else is batched in chunks that stay in cache. A covariance that is not positive definite gets a
growing jitter, which is recorded.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs

from fedkin.federation import Federation
from fedkin.models.kernels import Fast, Form, from_spec
from fedkin.randomness import name_keys, row_uniforms

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Normalize = bool | Literal["mean"]

# Doubles of one covariance array handled at once: a few of them fit into the second-level cache.
CHUNK_ELEMENTS = 1 << 16
# Up to this many features squared distances are summed difference by difference, which is exact
# for repeated rows; above it one matrix product is faster.
DIRECT_FEATURES = 4
# Jitter, as a share of the mean diagonal, tried one after another.
JITTERS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
# Standard deviation of the vague prior on the coefficients of a mean function, in units of the
# standardised outcome.
MEAN_PRIOR = 10.0
LOG_2PI = float(np.log(2 * np.pi))


class Evaluation(NamedTuple):
    """Negative log marginal likelihood (m,), its gradient (m, p), and the jitter used (m,)."""

    value: Floats
    gradient: Floats
    jitter: Floats


# ------------------------------------------------------------------ data, once per fit


class Packed(NamedTuple):
    """Pieces of similar size: owner (k,), X (k, d, w), y (k, w), sizes (k,), basis (k, q, w)."""

    owner: Indices
    X: Floats
    y: Floats
    sizes: Indices
    basis: Floats

    def part(self, which: Any) -> Packed:
        """Some of the pieces."""
        return Packed(*(array[which] for array in self))


class Prepared(NamedTuple):
    """What derives from the data of m clients: packed pieces and the outcome's standardisation.

    Clients whose outcome does not vary tell nothing of a standardised curve: `rows` is 0 there
    and they have no pieces.
    """

    packs: tuple[Packed, ...]
    rows: Floats
    location: Floats
    scale: Floats

    def take(self, who: Indices) -> Prepared:
        """That of some clients."""
        place = np.full(len(self.rows), -1, dtype=np.intp)
        place[who] = np.arange(len(who))
        packs = []
        for pack in self.packs:
            kept = place[pack.owner] >= 0
            if kept.any():
                part = pack.part(kept)
                packs.append(part._replace(owner=place[part.owner]))
        return Prepared(tuple(packs), self.rows[who], self.location[who], self.scale[who])


def prepare(
    clients: Federation, normalize_y: Normalize = True, mean: str = "zero", max_points: int = 500
) -> Prepared:
    """Standardise, cut clients of more than `max_points` rows into random pieces, and pack."""
    if clients.y is None:
        raise ValueError("a Gaussian process needs an outcome y at every site")
    location, scale, varies = standardisation(clients, normalize_y)
    y = (clients.y - location[clients.owner]) / scale[clients.owner]
    basis = mean_basis(clients, mean)
    pieces, owner = _pieces(clients, y, basis, max_points)
    packs = []
    d = clients.n_features
    for bucket in pieces.buckets():
        keep = varies[owner[bucket.clients]]
        block = Packed(
            owner[bucket.clients],
            bucket.pack(pieces.X[:, :d]),
            bucket.pack(pieces.y if pieces.y is not None else np.empty(0)),
            bucket.sizes,
            bucket.pack(pieces.X[:, d:]) if basis.shape[1] else np.zeros((len(keep), 0, 0)),
        )
        packs.append(block if keep.all() else block.part(keep))
    rows = np.where(varies, clients.sizes, 0).astype(np.float64)
    return Prepared(tuple(p for p in packs if len(p.owner)), rows, location, scale)


def standardisation(
    clients: Federation, normalize_y: Normalize
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Location and scale (m,) of every client's outcome, and whether it can be learnt from.

    `normalize_y` is True (own mean and standard deviation), "mean" (own mean only) or False.
    """
    m = clients.n_clients
    if normalize_y is False:
        return np.zeros(m), np.ones(m), clients.sizes > 0
    location, spread = outcome_moments(clients)
    if normalize_y == "mean":
        return location, np.ones(m), clients.sizes > 1
    varies = spread > 1e-12 * np.maximum(np.abs(location), 1e-300)
    return location, np.where(varies, spread, 1.0), varies


def outcome_moments(clients: Federation) -> tuple[Floats, Floats]:
    """Mean and standard deviation of every client's outcome, (m,)."""
    assert clients.y is not None
    location = _means(clients, clients.y[:, None])[:, 0]
    squares = (clients.y - location[clients.owner]) ** 2
    return location, np.sqrt(_means(clients, squares[:, None])[:, 0])


def _means(clients: Federation, rows: Floats) -> Floats:
    columns = [np.bincount(clients.owner, c, minlength=clients.n_clients) for c in rows.T]
    means: Floats = np.stack(columns, axis=1) / np.maximum(clients.sizes, 1)[:, None]
    return means


def mean_basis(clients: Federation, mean: str) -> Floats:
    """Columns of the mean function times the standard deviation of their prior, (N, q)."""
    if mean == "zero":
        return np.zeros((len(clients.X), 0))
    centre, spread = input_frame(clients)
    return basis_at(clients.X, centre[clients.owner], spread[clients.owner], mean)


def input_frame(clients: Federation) -> tuple[Floats, Floats]:
    """Means and standard deviations (1 where constant) of every client's features, (m, d)."""
    centre = _means(clients, clients.X)
    spread = np.sqrt(_means(clients, (clients.X - centre[clients.owner]) ** 2))
    return centre, np.where(spread > 0, spread, 1.0)


def basis_at(X: Floats, centre: Floats, spread: Floats, mean: str) -> Floats:
    """The same columns at any rows of a client."""
    ones = np.full((len(X), 1), MEAN_PRIOR)
    if mean == "constant":
        return ones
    return np.concatenate([ones, MEAN_PRIOR * (X - centre) / spread], axis=1)


def _pieces(
    clients: Federation, y: Floats, basis: Floats, max_points: int
) -> tuple[Federation, Indices]:
    """Clients as pieces of at most `max_points` rows, and whose each is.

    Rows of a Gaussian process are a Gaussian process: the pieces' summed likelihood is a
    composite likelihood with its optimum in the right place.
    """
    n_pieces = np.maximum(-(-clients.sizes // max_points), 1)
    owner = np.repeat(np.arange(len(clients)), n_pieces)
    within = np.arange(len(y)) - clients.offsets[:-1][clients.owner]
    order = np.arange(len(y))
    large = n_pieces[clients.owner] > 1
    if large.any():
        keys = name_keys(clients.names, 0)[clients.owner]
        draw = np.where(large, row_uniforms(keys, within.astype(np.uint64)), 0.0)
        order = np.lexsort((within, draw, clients.owner))
    first = np.concatenate([[0], np.cumsum(n_pieces)])[:-1]
    piece = np.sort(first[clients.owner] + within % n_pieces[clients.owner], kind="stable")
    counts = np.bincount(piece, minlength=len(owner))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows = np.concatenate([clients.X, basis], axis=1)[order]
    names = tuple(map(str, range(len(owner))))
    return Federation(rows, offsets, names, y[order]), owner


# ------------------------------------------------------------------ evaluation


def evaluate(data: Prepared, form: Form, theta: Floats) -> Evaluation:
    """Negative log likelihoods, gradients and jitters; `theta` is (p,) or one per client (m, p)."""
    m = len(data.rows)
    theta = np.broadcast_to(theta, (m, len(form.start)))
    value, gradient, jitter = np.zeros(m), np.zeros(theta.shape), np.zeros(m)
    for pack in data.packs:
        found = evaluate_pack(pack, form, theta[pack.owner])
        np.add.at(value, pack.owner, found.value)
        np.add.at(gradient, pack.owner, found.gradient)
        np.maximum.at(jitter, pack.owner, found.jitter)
    return Evaluation(value, gradient, jitter)


def evaluate_pack(pack: Packed, form: Form, theta: Floats) -> Evaluation:
    """The same for the pieces of one bucket, theta (k, p)."""
    if form.fast is None:
        return _generic(pack, form, theta)
    width = pack.y.shape[1]
    step = max(1, CHUNK_ELEMENTS // width**2)
    full = form.fast.fill(theta)
    parts = [
        _fast(pack.part(slice(b, b + step)), form.fast, full[b : b + step])
        for b in range(0, len(pack.owner), step)
    ]
    value, gradient, jitter = map(np.concatenate, zip(*parts))
    return Evaluation(value, np.ascontiguousarray(gradient[:, form.fast.free]), jitter)


def _fast(pack: Packed, fast: Fast, full: Floats) -> tuple[Floats, Floats, Floats]:
    """Value, gradient in all q log-parameters, jitter."""
    width = pack.y.shape[1]
    scale, noise = np.exp(full[:, 0]), np.exp(full[:, -1])
    # Centred, because the sums below cancel for rows far from the origin.
    Z = (pack.X - pack.X.mean(axis=2, keepdims=True)) * np.exp(-full[:, 1:-1])[:, :, None]
    padding = np.arange(width) >= pack.sizes[:, None]
    square = squared_distances(Z)
    signal, slope = correlation(fast.smoothness, square, scale)
    if padding.any():
        kept = (~padding).astype(np.float64)
        signal *= kept[:, :, None] * kept[:, None, :]
    diagonal = np.where(padding, 1.0, noise[:, None])
    matrix = signal.copy() if pack.basis.shape[1] == 0 else signal + _gram(pack.basis)
    _diagonal(matrix)[:] += diagonal
    alpha, log_det, jitter = _factor_and_invert(matrix, pack, signal, diagonal)
    fit = np.einsum("kn,kn->k", pack.y, alpha)
    value = 0.5 * (fit + log_det + pack.sizes * LOG_2PI)
    trace = _diagonal(matrix).sum(axis=1) - padding.sum(axis=1)
    gradient = np.empty_like(full)
    by_noise = 0.5 * (trace - np.einsum("kn,kn->k", alpha, alpha))
    gradient[:, -1] = noise * by_noise
    # tr[(inv K - aa') K] is n - y'a; what is not signal is noise, jitter and the mean's part.
    gradient[:, 0] = 0.5 * (pack.sizes - fit) - (noise + jitter) * by_noise
    matrix -= alpha[:, :, None] * alpha[:, None, :]
    if pack.basis.shape[1]:
        gradient[:, 0] -= 0.5 * _mean_part(matrix, pack.basis)
    matrix *= slope if slope is not None else signal
    matrix *= _upper(width)
    gradient[:, 1:-1] = _by_length(matrix, Z, square, full.shape[1] - 2)
    return value, gradient, jitter


def squared_distances(Z: Floats) -> Floats:
    """Squared distances (k, w, w) of the columns of (k, d, w)."""
    if Z.shape[1] <= DIRECT_FEATURES:
        square = _squared_difference(Z[:, 0])
        for j in range(1, Z.shape[1]):
            square += _squared_difference(Z[:, j])
        return square
    lengths = np.einsum("kdn,kdn->kn", Z, Z)
    square = np.matmul(Z.transpose(0, 2, 1), Z)
    square *= -2.0
    square += lengths[:, :, None]
    square += lengths[:, None, :]
    np.maximum(square, 0.0, out=square)
    _diagonal(square)[:] = 0.0
    return square


def _squared_difference(z: Floats) -> Floats:
    difference = z[:, :, None] - z[:, None, :]
    difference *= difference
    return difference


def correlation(smoothness: float, square: Floats, scale: Floats) -> tuple[Floats, Floats | None]:
    """Covariance of the signal and its derivative by log length over the squared difference.

    The second is None where it equals the first (RBF).
    """
    scale = scale.reshape(-1, *[1] * (square.ndim - 1))
    if smoothness == np.inf:
        signal = np.multiply(square, -0.5)
        np.exp(signal, out=signal)
        signal *= scale
        return signal, None
    distance = np.sqrt(2 * smoothness * square)
    decay = np.exp(-distance)
    decay *= scale
    if smoothness == 0.5:
        apart = distance > 0
        return decay, np.divide(decay, distance, out=np.zeros_like(decay), where=apart)
    if smoothness == 1.5:
        return (1.0 + distance) * decay, 3.0 * decay
    near = (1.0 + distance) * decay
    return near + distance * distance * decay / 3.0, (5.0 / 3.0) * near


def _by_length(upper: Floats, Z: Floats, square: Floats, n_lengths: int) -> Floats:
    """Derivatives by the log length scales from the strict upper triangle of W."""
    if n_lengths == 1:
        total: Floats = np.einsum("kij,kij->k", upper, square)[:, None]
        return total
    sums = upper.sum(axis=1) + upper.sum(axis=2)
    through = np.matmul(Z, upper)
    return np.einsum("kn,kdn->kd", sums, Z * Z) - 2.0 * np.einsum("kdn,kdn->kd", through, Z)


def _mean_part(matrix: Floats, basis: Floats) -> Floats:
    """Sum of the mean function's covariance times inv K - aa' (upper triangle filled)."""
    gram = _gram(basis)
    gram *= 2.0 * _upper(matrix.shape[1]) + np.eye(matrix.shape[1])
    total: Floats = np.einsum("kij,kij->k", matrix, gram)
    return total


def _gram(basis: Floats) -> Floats:
    return np.matmul(basis.transpose(0, 2, 1), basis)


_UPPER: dict[int, Floats] = {}


def _upper(width: int) -> Floats:
    """Ones strictly above the diagonal; the last few widths are kept."""
    if width not in _UPPER:
        if len(_UPPER) > 64:
            _UPPER.clear()
        _UPPER[width] = np.triu(np.ones((width, width)), 1)
    return _UPPER[width]


def _diagonal(matrices: Floats) -> Floats:
    """A writable view (k, w) of the diagonals."""
    k, width, _ = matrices.shape
    return matrices.reshape(k, -1)[:, :: width + 1]


# ------------------------------------------------------------------ LAPACK, client by client


def _factor_and_invert(
    matrix: Floats, pack: Packed, signal: Floats, diagonal: Floats
) -> tuple[Floats, Floats, Floats]:
    """Weights inv(K) y, log determinants and jitters; `matrix` becomes the inverses.

    LAPACK's lower triangle is our upper one; the other triangle is left as it was.
    """
    jitter = np.zeros(len(matrix))
    transposed = matrix.transpose(0, 2, 1)
    for k in range(len(matrix)):
        if dpotrf(transposed[k], 1, 0, 1)[1] != 0:
            jitter[k] = _with_jitter(matrix[k], _rebuild(pack, signal, diagonal, k))
    log_det = 2.0 * np.log(_diagonal(matrix)).sum(axis=1)
    alpha = np.empty_like(pack.y)
    for k in range(len(matrix)):
        alpha[k] = dpotrs(transposed[k], pack.y[k], 1)[0]
        dpotri(transposed[k], 1, 1)
    return alpha, log_det, jitter


def _rebuild(pack: Packed, signal: Floats, diagonal: Floats, k: int) -> Floats:
    original = signal[k] + np.diag(diagonal[k])
    return original + pack.basis[k].T @ pack.basis[k] if pack.basis.shape[1] else original


def _with_jitter(target: Floats, original: Floats) -> float:
    """Factor `original` into `target` with the least jitter that works."""
    size = float(np.mean(np.diagonal(original)))
    for share in JITTERS:
        target[:] = original
        target.flat[:: len(target) + 1] += share * size
        if dpotrf(target.T, 1, 0, 1)[1] == 0:
            return share * size
    raise np.linalg.LinAlgError("the covariance is not positive definite, whatever the jitter")


# ------------------------------------------------------------------ any scikit-learn kernel


def _generic(pack: Packed, form: Form, theta: Floats) -> Evaluation:
    """Client by client through the kernel's own gradient."""
    kernel = from_spec(form.spec)
    results = []
    for k, n in enumerate(pack.sizes):
        X, y = np.ascontiguousarray(pack.X[k, :, :n].T), pack.y[k, :n]
        covariance, slopes = kernel.clone_with_theta(theta[k])(X, eval_gradient=True)
        if pack.basis.shape[1]:
            covariance = covariance + pack.basis[k, :, :n].T @ pack.basis[k, :, :n]
        results.append(_likelihood(covariance, slopes, y))
    value, gradient, jitter = map(np.array, zip(*results))
    return Evaluation(value, gradient.reshape(theta.shape), jitter)


def _likelihood(covariance: Floats, slopes: Floats, y: Floats) -> tuple[float, Floats, float]:
    factor, jitter = cholesky(covariance)
    alpha = dpotrs(factor, y, 1)[0]
    inverse = dpotri(factor, 1)[0]
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    log_det = 2.0 * np.log(np.diagonal(factor)).sum()
    value = 0.5 * (y @ alpha + log_det + len(y) * LOG_2PI)
    return value, 0.5 * np.einsum("ij,ijp->p", inverse - np.outer(alpha, alpha), slopes), jitter


def cholesky(covariance: Floats) -> tuple[Floats, float]:
    """Lower factor (Fortran order) and the jitter it took."""
    target = np.array(covariance, order="C")
    jitter = 0.0
    if dpotrf(target.T, 1, 0, 1)[1] != 0:
        jitter = _with_jitter(target, covariance)
    return np.tril(target.T), jitter
