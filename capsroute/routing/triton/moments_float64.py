"""Passes over inputs in float64, for samples that products of float16 halves are not exact enough for.

Axes as in `moments.py`. Where few inputs have all the weight, some lie far from the others or they form clusters,
squares are large and their differences small. Triton multiplies float64 on tensor cores only if it cannot see that the
operands were converted: so the next tile's features are computed while the current tile is used.
"""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

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
def load_tile(slot, i, T: tl.constexpr):
    """Load inputs and return their centred capsules `[i, x]`, features `[i, k]` and f(a_inp) `[i]`."""
    b_mean = tl.load(slot.feature_mean + 3 * T.X + tl.arange(0, T.X)).to(tl.float64)
    b_x = tile.centre_capsules(tile.load_capsules(slot.x, i, slot.n, T), b_mean, tl.load(slot.scale))
    b_phi = tile.compute_features(b_x, slot.feature_mean, 1, T)
    return b_x, b_phi, tl.sigmoid(tile.load_scores(slot.a, i, slot.n)).to(tl.float64)


@triton.jit
def compute_assignments(b_phi, p_theta, o_j, T: tl.constexpr):
    """Compute the routing probabilities `[i, j]` of the E-step; logits are to base two."""
    b_logit = dot_float64(b_phi, tl.trans(load_rows(p_theta, o_j, T)))
    b_logit = tl.where((o_j < T.J)[None, :], b_logit, float("-inf"))
    b_R = tl.exp2((b_logit - tl.max(b_logit, 1)[:, None]).to(tl.float32)).to(tl.float64)
    return b_R / tl.sum(b_R, 1)[:, None]


@triton.jit
def sum_features_float64(slot, p_theta, p_partial, p_D_partial, T: tl.constexpr):
    """Run the E-step and sum features over a slot's inputs."""
    o_j = tl.arange(0, T.BLOCK_J)
    b_S, b_D_sum = tl.full([T.BLOCK_J, T.K], 0.0, tl.float64), tl.full([T.BLOCK_J], 0.0, tl.float64)
    i = slot.first + tl.arange(0, T.BLOCK_I)
    _, b_phi, b_f = load_tile(slot, i, T)
    for start in range(slot.first, slot.last, T.BLOCK_I):
        b_D = compute_assignments(b_phi, p_theta, o_j, T) * b_f[:, None]
        b_D_sum += tl.sum(b_D, 0)
        b_S += dot_float64(tl.trans(b_D), b_phi)
        i = start + T.BLOCK_I + tl.arange(0, T.BLOCK_I)
        _, b_phi, b_f = load_tile(slot, i, T)
    store_rows(p_partial, b_S, o_j, T)
    tl.store(p_D_partial + o_j, b_D_sum, mask=o_j < T.J)


@triton.jit
def sum_features_float64_bwd(slot, p_theta, p_partial, p_dS, p_da_inp, p_dx, overwrite, T: tl.constexpr):
    """Compute gradients of a slot's inputs, and sum those of the E-step's coefficients over them."""
    o_j = tl.arange(0, T.BLOCK_J)
    b_dtheta = tl.full([T.BLOCK_J, T.K], 0.0, tl.float64)
    i = slot.first + tl.arange(0, T.BLOCK_I)
    b_x, b_phi, b_f = load_tile(slot, i, T)
    for start in range(slot.first, slot.last, T.BLOCK_I):
        b_R = compute_assignments(b_phi, p_theta, o_j, T)
        b_dD = dot_float64(b_phi, tl.trans(load_rows(p_dS, o_j, T)))
        b_df = tl.sum(mul_without_fma(b_R, b_dD), 1)
        b_D = b_R * b_f[:, None]
        b_dlogit = b_D * (b_dD - b_df[:, None])
        b_dtheta += dot_float64(tl.trans(b_dlogit), b_phi)
        b_dphi = dot_float64(b_dlogit * tile.LN_2, load_rows(p_theta, o_j, T))
        b_dphi += dot_float64(b_D, load_rows(p_dS, o_j, T))
        b_dx = tile.features_bwd(b_dphi, b_x, T) * tl.load(slot.scale)
        at_x, m_x = tile.offset_capsules(i, T)
        m_i, m_old = i < slot.n, i < tl.where(overwrite == 0, slot.n, 0)
        b_dx += tl.load(p_dx + at_x, mask=m_old[:, None] & m_x, other=0.0)
        b_df += tl.load(p_da_inp + i, mask=m_old, other=0.0)
        tl.store(p_dx + at_x, b_dx.to(tl.float32), mask=m_i[:, None] & m_x)
        tl.store(p_da_inp + i, b_df.to(tl.float32), mask=m_i)
        i = start + T.BLOCK_I + tl.arange(0, T.BLOCK_I)
        b_x, b_phi, b_f = load_tile(slot, i, T)
    store_rows(p_partial, b_dtheta, o_j, T)
