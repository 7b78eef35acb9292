"""Samples that products of halves are not exact enough for, routed in float64. Axes as in `moments.py`.

Where few inputs have all the weight, or some lie far away from most, or they come in clusters, squares are large and
what they leave is small.
Such samples are few, and GPUs that are made to compute have tensor cores for float64 too. For these, Triton's compiler
wants products of numbers that it cannot see were others before: so a tile is loaded, and its features are formed, while
the one before is worked on.
"""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from .moments_tile import all_features, centred, gates, load_capsules, load_scores, place, real, to_capsules
from .numerics import rounded

HAS_FLOAT64_DOT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 5)
"""Whether Triton multiplies in float64; otherwise no sample is hard."""
FLOAT64 = tl.constexpr(HAS_FLOAT64_DOT)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def product(b, c):
    """A matrix product in float64."""
    return tl.dot(b, c, out_dtype=tl.float64)


@triton.jit
def load_rows(p_rows, o_jj, J: tl.constexpr, K: tl.constexpr):
    """Rows `[j, k]`; what logits have in common over inputs is the coefficient of the one among features."""
    return tl.load(p_rows + o_jj[:, None] * K + tl.arange(0, K)[None, :], mask=(o_jj < J)[:, None], other=0.0)


@triton.jit
def store_rows(p_rows, b_rows, o_jj, J: tl.constexpr, K: tl.constexpr):
    tl.store(p_rows + o_jj[:, None] * K + tl.arange(0, K)[None, :], b_rows, mask=(o_jj < J)[:, None])


@triton.jit
def tile_of(p_a, p_x, p_usual, p_scale, i, n, C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr,
            X: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """Capsules, features and gates of inputs."""
    o_x = tl.arange(0, X)
    b_mean = tl.load(p_usual + 3 * X + o_x).to(tl.float64)
    b_x = centred(load_capsules(p_x, i, n, o_x, C, D, BLOCK_D), b_mean, tl.load(p_scale))
    return b_x, all_features(b_x, p_usual, 1, D, BLOCK_D, X, BLOCK_I), gates(load_scores(p_a, i, n)).to(tl.float64)


@triton.jit
def assign(b_phi, p_rows, o_jj, J: tl.constexpr, K: tl.constexpr):
    """E-step: routing probabilities `[i, j]`; logits are to base two."""
    b_logit = product(b_phi, tl.trans(load_rows(p_rows, o_jj, J, K)))
    b_logit = tl.where((o_jj < J)[None, :], b_logit, float("-inf"))
    b_R = tl.exp2((b_logit - tl.max(b_logit, 1)[:, None]).to(tl.float32)).to(tl.float64)
    return b_R / tl.sum(b_R, 1)[:, None]


@triton.jit
def hard_sums(
    p_a, p_x, p_usual, p_scale, p_rows, p_part, p_one, first, last, n, J: tl.constexpr, C: tl.constexpr,
    D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, X: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """E-step and sums of features over inputs from `first` to `last`; all pointers are the sample's."""
    K: tl.constexpr = 4 * X
    o_jj = tl.arange(0, BLOCK_JJ)
    b_S, b_one = tl.zeros([BLOCK_JJ, K], tl.float64), tl.zeros([BLOCK_JJ], tl.float64)
    i = first + tl.arange(0, BLOCK_I)
    _, b_phi, b_f = tile_of(p_a, p_x, p_usual, p_scale, i, n, C, D, BLOCK_I, X, BLOCK_D)
    for start in range(first, last, BLOCK_I):
        b_D = assign(b_phi, p_rows, o_jj, J, K) * b_f[:, None]
        b_one += tl.sum(b_D, 0)
        b_S += product(tl.trans(b_D), b_phi)
        i = start + BLOCK_I + tl.arange(0, BLOCK_I)
        _, b_phi, b_f = tile_of(p_a, p_x, p_usual, p_scale, i, n, C, D, BLOCK_I, X, BLOCK_D)
    store_rows(p_part, b_S, o_jj, J, K)
    tl.store(p_one + o_jj, b_one, mask=o_jj < J)


@triton.jit
def hard_sums_bwd(
    p_a, p_x, p_usual, p_scale, p_rows, p_part, p_drows, p_da_inp, p_dx, first, last, n, fresh, J: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, X: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Gradients of these inputs, and what they add to those of the E-step's coefficients."""
    K: tl.constexpr = 4 * X
    o_jj, o_x = tl.arange(0, BLOCK_JJ), tl.arange(0, X)
    b_dtheta = tl.zeros([BLOCK_JJ, K], tl.float64)
    i = first + tl.arange(0, BLOCK_I)
    b_x, b_phi, b_f = tile_of(p_a, p_x, p_usual, p_scale, i, n, C, D, BLOCK_I, X, BLOCK_D)
    for start in range(first, last, BLOCK_I):
        b_R = assign(b_phi, p_rows, o_jj, J, K)
        b_dD = product(b_phi, tl.trans(load_rows(p_drows, o_jj, J, K)))
        b_df = tl.sum(rounded(b_R, b_dD), 1)
        b_D = b_R * b_f[:, None]
        b_dlogit = b_D * (b_dD - b_df[:, None])
        b_dtheta += product(tl.trans(b_dlogit), b_phi)
        b_dphi = product(b_dlogit * LN_2, load_rows(p_rows, o_jj, J, K)) + product(b_D, load_rows(p_drows, o_jj, J, K))
        b_dx = to_capsules(b_dphi, b_x, D, BLOCK_D, X, BLOCK_I) * tl.load(p_scale)
        at_x = i[:, None] * (C * D) + place(o_x, D, BLOCK_D)[None, :]
        m_i, m_x, m_old = i < n, real(o_x, C, D, BLOCK_D)[None, :], i < tl.where(fresh == 0, n, 0)
        b_dx += tl.load(p_dx + at_x, mask=m_old[:, None] & m_x, other=0.0)
        b_df += tl.load(p_da_inp + i, mask=m_old, other=0.0)
        tl.store(p_dx + at_x, b_dx.to(tl.float32), mask=m_i[:, None] & m_x)
        tl.store(p_da_inp + i, b_df.to(tl.float32), mask=m_i)
        i = start + BLOCK_I + tl.arange(0, BLOCK_I)
        b_x, b_phi, b_f = tile_of(p_a, p_x, p_usual, p_scale, i, n, C, D, BLOCK_I, X, BLOCK_D)
    store_rows(p_part, b_dtheta, o_jj, J, K)
