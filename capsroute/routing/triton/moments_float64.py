"""Passes over inputs in float64, for samples that products of float16 halves are not exact enough for.

Axes as in `moments.py`. Where few inputs have all the weight, some lie far from the others or they form clusters,
squares are large and their differences small. Triton multiplies float64 on tensor cores only if it cannot see that the
operands were converted: so the next tile's features are computed while the current tile is used.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

import triton
import triton.language as tl

from . import moments_tile as tile
from .moments_tile import load_rows, store_rows
from .numerics import mul_without_fma

HAS_FLOAT64_DOT = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 5)
"""Whether Triton multiplies matrices in float64; otherwise no sample is routed so."""
FLOAT64 = tl.constexpr(HAS_FLOAT64_DOT)


@triton.jit
def dot_float64(b, c):
    return tl.dot(b, c, out_dtype=tl.float64)


@triton.jit
def load_tile(p_a, p_x, p_feature_mean, p_scale, i, n, C: tl.constexpr, D: tl.constexpr, X: tl.constexpr,
              BLOCK_D: tl.constexpr):  # fmt: skip
    """Load inputs and return their centred capsules `[i, x]`, features `[i, k]` and f(a_inp) `[i]`."""
    o_x = tl.arange(0, X)
    b_mean = tl.load(p_feature_mean + 3 * X + o_x).to(tl.float64)
    b_x = tile.centre_capsules(tile.load_capsules(p_x, i, n, o_x, C, D, BLOCK_D), b_mean, tl.load(p_scale))
    b_phi = tile.compute_features(b_x, p_feature_mean, 1, D, BLOCK_D)
    return b_x, b_phi, tl.sigmoid(tile.load_scores(p_a, i, n)).to(tl.float64)


@triton.jit
def compute_assignments(b_phi, p_theta, o_jj, J: tl.constexpr, K: tl.constexpr):
    """Compute the routing probabilities `[i, j]` of the E-step; logits are to base two."""
    b_logit = dot_float64(b_phi, tl.trans(load_rows(p_theta, o_jj, J, K)))
    b_logit = tl.where((o_jj < J)[None, :], b_logit, float("-inf"))
    b_R = tl.exp2((b_logit - tl.max(b_logit, 1)[:, None]).to(tl.float32)).to(tl.float64)
    return b_R / tl.sum(b_R, 1)[:, None]


@triton.jit
def sum_features_float64(
    p_a, p_x, p_feature_mean, p_scale, p_theta, p_partial, p_D_partial, first, last, n, J: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, X: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Run the E-step and sum features over the inputs from `first` to `last`; all pointers are the sample's."""
    K: tl.constexpr = 4 * X
    o_jj = tl.arange(0, BLOCK_JJ)
    b_S, b_D_sum = tl.zeros([BLOCK_JJ, K], tl.float64), tl.zeros([BLOCK_JJ], tl.float64)
    i = first + tl.arange(0, BLOCK_I)
    _, b_phi, b_f = load_tile(p_a, p_x, p_feature_mean, p_scale, i, n, C, D, X, BLOCK_D)
    for start in range(first, last, BLOCK_I):
        b_D = compute_assignments(b_phi, p_theta, o_jj, J, K) * b_f[:, None]
        b_D_sum += tl.sum(b_D, 0)
        b_S += dot_float64(tl.trans(b_D), b_phi)
        i = start + BLOCK_I + tl.arange(0, BLOCK_I)
        _, b_phi, b_f = load_tile(p_a, p_x, p_feature_mean, p_scale, i, n, C, D, X, BLOCK_D)
    store_rows(p_partial, b_S, o_jj, J)
    tl.store(p_D_partial + o_jj, b_D_sum, mask=o_jj < J)


@triton.jit
def sum_features_float64_bwd(
    p_a, p_x, p_feature_mean, p_scale, p_theta, p_partial, p_dS, p_da_inp, p_dx, first, last, n, overwrite,
    J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, X: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Compute gradients of the inputs from `first` to `last`, and sum those of the E-step's coefficients over them."""
    K: tl.constexpr = 4 * X
    o_jj, o_x = tl.arange(0, BLOCK_JJ), tl.arange(0, X)
    b_dtheta = tl.zeros([BLOCK_JJ, K], tl.float64)
    i = first + tl.arange(0, BLOCK_I)
    b_x, b_phi, b_f = load_tile(p_a, p_x, p_feature_mean, p_scale, i, n, C, D, X, BLOCK_D)
    for start in range(first, last, BLOCK_I):
        b_R = compute_assignments(b_phi, p_theta, o_jj, J, K)
        b_dD = dot_float64(b_phi, tl.trans(load_rows(p_dS, o_jj, J, K)))
        b_df = tl.sum(mul_without_fma(b_R, b_dD), 1)
        b_D = b_R * b_f[:, None]
        b_dlogit = b_D * (b_dD - b_df[:, None])
        b_dtheta += dot_float64(tl.trans(b_dlogit), b_phi)
        b_dphi = dot_float64(b_dlogit * tile.LN_2, load_rows(p_theta, o_jj, J, K))
        b_dphi += dot_float64(b_D, load_rows(p_dS, o_jj, J, K))
        b_dx = tile.features_bwd(b_dphi, b_x, D, BLOCK_D) * tl.load(p_scale)
        at_x = i[:, None] * (C * D) + tile.offset_entries(o_x, D, BLOCK_D)[None, :]
        m_i, m_x = i < n, tile.mask_entries(o_x, C, D, BLOCK_D)[None, :]
        m_old = i < tl.where(overwrite == 0, n, 0)
        b_dx += tl.load(p_dx + at_x, mask=m_old[:, None] & m_x, other=0.0)
        b_df += tl.load(p_da_inp + i, mask=m_old, other=0.0)
        tl.store(p_dx + at_x, b_dx.to(tl.float32), mask=m_i[:, None] & m_x)
        tl.store(p_da_inp + i, b_df.to(tl.float32), mask=m_i)
        i = start + BLOCK_I + tl.arange(0, BLOCK_I)
        b_x, b_phi, b_f = load_tile(p_a, p_x, p_feature_mean, p_scale, i, n, C, D, X, BLOCK_D)
    store_rows(p_partial, b_dtheta, o_jj, J)
