"""Exact log marginal likelihood of Gaussian processes and its gradient, batched over clients.

With K the covariance of a client's n standardised targets y and a = inv(K) y,

    value = (y'a + log det K + n log 2 pi) / 2,    d value = tr[(inv(K) - a a') dK] / 2.

For the fast family no (n, n, d) tensor is ever made: with z = x / length, W = (inv(K) - a a')
times dk/d(log length) / (z_i - z_j)^2 elementwise and r its row sums,

    d value / d log length_l = sum_i r_i z_il^2 - z_l' W z_l.

Clients are packed into buckets of similar size; padding is a unit diagonal and a zero target,
which adds nothing. Factor and inverse are LAPACK's potrf and potri, client by client; everything
else is batched in chunks that stay in cache. A covariance that is not positive definite gets a
growing jitter, which is recorded.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.special import logsumexp

from fedkin.arrays import Bools, Floats
from fedkin.models.gp_rows import Packed, Prepared
from fedkin.models.kernels import Fast, Form, from_spec
from fedkin.threads import one_thread

# Doubles of one covariance array handled at once: a few of them fit into the second-level cache.
COVARIANCE_ELEMENTS = 1 << 16
# Up to this many features squared distances are summed difference by difference, which is exact
# for repeated rows; above it one matrix product is faster.
DIRECT_FEATURES = 4
# Jitter, as a share of the mean diagonal, tried one after another.
JITTERS = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4)
LOG_2PI = float(np.log(2 * np.pi))


class Evaluation(NamedTuple):
    """Negative log marginal likelihood (m,), its gradient (m, p), and the jitter used (m,)."""

    value: Floats
    gradient: Floats
    jitter: Floats


# ------------------------------------------------------------------ evaluation


def evaluate(data: Prepared, form: Form, theta: Floats) -> Evaluation:
    """Negative log likelihoods, gradients and jitters; `theta` is (p,) or one per client (m, p)."""
    m = len(data.rows)
    theta = np.broadcast_to(theta, (m, len(form.start)))
    value, gradient, jitter = np.zeros(m), np.zeros(theta.shape), np.zeros(m)
    for pack in data.packs:
        pieces = _evaluate_pack(pack, form, theta[pack.owner])
        np.add.at(value, pack.owner, pieces.value)
        np.add.at(gradient, pack.owner, pieces.gradient)
        np.maximum.at(jitter, pack.owner, pieces.jitter)
    if data.walked is not None:
        who = data.walked.owner
        value[who], gradient[who], jitter[who] = data.walked.evaluate(form, theta[who])
    return Evaluation(value, gradient, jitter)


def evaluate_each(data: Prepared, form: Form, theta: Floats) -> Evaluation:
    """Values (m, P), gradients (m, P, p) and largest jitters (m,) under each of P priors (P, p)."""
    value, gradient, jitter = zip(*(evaluate(data, form, prior) for prior in theta))
    return Evaluation(np.stack(value, axis=1), np.stack(gradient, axis=1), np.max(jitter, axis=0))


def prior_responsibilities(value: Floats, log_weights: Floats) -> tuple[Floats, Floats]:
    """Log likelihood (m,) under a mixture of priors, and each prior's share in it (m, P)."""
    joint = log_weights - value
    loglik = logsumexp(joint, axis=1, keepdims=True)
    return loglik[:, 0], np.exp(joint - loglik)


def _evaluate_pack(pack: Packed, form: Form, theta: Floats) -> Evaluation:
    """Negative log likelihoods, gradients and jitters of the pieces of one bucket, theta (k, p)."""
    width = pack.y.shape[1]
    with one_thread(width):
        if form.fast is None:
            return _generic(pack, form, theta)
        step = max(1, COVARIANCE_ELEMENTS // width**2)
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


@lru_cache(maxsize=64)
def _upper(width: int) -> Floats:
    """Ones strictly above the diagonal; to be read only."""
    return np.triu(np.ones((width, width)), 1)


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
        value, weight, jitter = likelihood(covariance, y)
        results.append((value, 0.5 * np.einsum("ij,ijp->p", weight, slopes), jitter))
    values, gradients, jitters = map(np.array, zip(*results))
    return Evaluation(values, gradients.reshape(theta.shape), jitters)


def likelihood(covariance: Floats, y: Floats) -> tuple[float, Floats, float]:
    """Negative log likelihood of one client, inv(K) - aa' (n, n), and the jitter it took."""
    factor, jitter = cholesky(covariance)
    alpha = dpotrs(factor, y, 1)[0]
    inverse = dpotri(factor, 1)[0]
    log_det = 2.0 * np.log(np.diagonal(factor)).sum()
    value = 0.5 * (y @ alpha + log_det + len(y) * LOG_2PI)
    weight = np.tril(inverse) + np.tril(inverse, -1).T - np.outer(alpha, alpha)
    return value, weight, jitter


def cholesky(covariance: Floats) -> tuple[Floats, float]:
    """Lower factor (Fortran order) and the jitter it took."""
    target = np.array(covariance, order="C")
    jitter = 0.0
    if dpotrf(target.T, 1, 0, 1)[1] != 0:
        jitter = _with_jitter(target, covariance)
    return np.where(_lower(len(target)), target.T, 0.0), jitter


@lru_cache(maxsize=64)
def _lower(n: int) -> Bools:
    """Where a lower triangle is; sites of the same size have the same."""
    return np.tri(n, dtype=bool)
