"""Forward kernels of the stored form, whose votes lie in memory: matrix products form them, these kernels read them.

Axes: `b` samples, `i` inputs, `j` outputs, `c` covector, `h` output properties, `v` c and h together, `t` iterations.
Inputs come as kinds at places, `i = kind * n_places + place`. Rows `n` of votes `[n, c, j, h]`, without biases, and of
assignments `[t, n, j]` are the inputs of a piece of the batch, ordered by kind, sample and place; packed samples, which
have one kind, lie one after the other. `vectors [t, 4, b, j, v]` hold the models' mu, precisions, and sums over inputs
of D_use times distances E to mu and times E^2; `scalars [t, 4, b, j]` their scores, sums of D_use and D_ign, and what
logits add.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false

import triton
import triton.language as tl

from .grid import wait_for_all
from .numerics import log_sigmoid, min_nan, mul_without_fma, sample_range

MAX_DISTANCE = tl.constexpr(1e38)
"""Of squared distances, so that differences of logits stay finite."""
RUNTIME_SIZES = ("first", "last", "n_b", "first_b", "n_local", "n_inp", "n_places", "n_rows", "n_iters")
"""Arguments that kernels are not specialised for."""


@triton.jit
def locate_inputs(p_offsets, b, local, n_local, n_inp, n_places, PACKED: tl.constexpr):
    """Return where a sample's inputs start, how many there are, and the terms of `row_of`."""
    start, n = sample_range(p_offsets, b, n_inp, PACKED)
    if PACKED:
        return start, n, start, n_inp, tl.cast(0, tl.int64)
    else:
        return start, n, tl.cast(local, tl.int64) * n_places, n_places, tl.cast(n_local, tl.int64) * n_places


@triton.jit
def load_inputs(p_a, at, pid_i, BLOCK_I: tl.constexpr):
    """Return rows `[i]`, kinds, and f(a_inp) of a tile of inputs; f is zero past the last."""
    start, n, first_row, n_places, kind_rows = at
    i = pid_i * BLOCK_I + tl.arange(0, BLOCK_I)
    kind = i // tl.maximum(n_places, 1)
    b_a = tl.load(p_a + start + i, mask=i < n, other=float("-inf")).to(tl.float32)
    return first_row + kind * kind_rows + (i - kind * n_places), kind, i < n, tl.sigmoid(b_a)


@triton.jit
def load_votes(p_V, p_B, rows, kinds, m_i, o_j, J, C: tl.constexpr, H: tl.constexpr, BLOCK_V: tl.constexpr,
               B_K: tl.constexpr):  # fmt: skip
    """Load votes `[i, j, v]` and add their biases."""
    o_v = tl.arange(0, BLOCK_V)
    m_jv = (o_j < J)[:, None] & (o_v < C * H)[None, :]
    o_jv = o_j[:, None] * H + (o_v // H * J * H + o_v % H)[None, :]
    p_rows = p_V + rows[:, None, None] * (C * J * H)
    b_V = tl.load(p_rows + o_jv[None, :, :], mask=m_i[:, None, None] & m_jv[None, :, :], other=0.0)
    o_B = o_j[:, None] * (C * H) + o_v[None, :]
    if B_K:
        p_kinds = p_B + kinds.to(tl.int64)[:, None, None] * (J * C * H)
        return b_V + tl.load(p_kinds + o_B[None, :, :], mask=m_i[:, None, None] & m_jv[None, :, :], other=0.0)
    else:
        return b_V + tl.load(p_B + o_B, mask=m_jv, other=0.0)[None, :, :]


@triton.jit
def load_vector(p_vectors, row, o_j, J, C: tl.constexpr, H: tl.constexpr, BLOCK_V: tl.constexpr):
    """Load a tile's numbers `[j, v]` of a row `[j, v]`."""
    o_v = tl.arange(0, BLOCK_V)
    o_jv = o_j[:, None] * (C * H) + o_v[None, :]
    return tl.load(p_vectors + row * J * (C * H) + o_jv, mask=(o_j < J)[:, None] & (o_v < C * H)[None, :], other=0.0)


@triton.jit
def store_vector(p_vectors, row, o_j, m_j, b, J, C: tl.constexpr, H: tl.constexpr):
    """Store a tile's numbers `[j, v]` of a row `[j, v]`."""
    o_v = tl.arange(0, b.shape[1])
    o_jv = o_j[:, None] * (C * H) + o_v[None, :]
    tl.store(p_vectors + row * J * (C * H) + o_jv, b, mask=m_j[:, None] & (o_v < C * H)[None, :])


@triton.jit
def load_beta(p_beta, kinds, m_i, o_j, J, BETA_K: tl.constexpr):
    """Load a beta `[i|1, j]`."""
    if BETA_K:
        return tl.load(p_beta + kinds[:, None] * J + o_j[None, :], mask=m_i[:, None] & (o_j < J)[None, :], other=0.0)
    else:
        return tl.load(p_beta + o_j, mask=o_j < J, other=0.0)[None, :]


@triton.jit
def load_D_use(p_R, rows, m_i, o_j, b_f, t, n_rows, J):
    """Load D_use `[i, j]` of iteration t; in the first all outputs share an input."""
    m = m_i[:, None] & (o_j < J)[None, :]
    p_own = p_R + ((t - 1) * tl.cast(n_rows, tl.int64) + rows[:, None]) * J + o_j[None, :]
    b_R = tl.where(t == 0, 1.0 / J, tl.load(p_own, mask=m & (t > 0), other=0.0))
    return tl.where(m, b_f[:, None] * b_R, 0.0)


@triton.jit
def compute_models(
    p_a, p_offsets, p_V, p_B, p_use, p_ign, p_R, p_vectors, p_scalars, p_a_out, p_mu_out, p_sig2_out, unit, t,
    n_b, first_b, n_local, n_inp, n_places, n_rows, n_iters, J, eps, C: tl.constexpr, H: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_V: tl.constexpr, B_K: tl.constexpr, BETA_K: tl.constexpr,
    PACKED: tl.constexpr, GAUSSIAN: tl.constexpr,
):  # fmt: skip
    """Compute a tile of output capsules: means over inputs, then variances about them."""
    n_tiles = tl.cdiv(J, BLOCK_J)
    local = unit // n_tiles
    b = tl.cast(first_b + local, tl.int64)
    o_j = unit % n_tiles * BLOCK_J + tl.arange(0, BLOCK_J)
    at = locate_inputs(p_offsets, b, local, n_local, n_inp, n_places, PACKED)
    b_D_sum = tl.zeros([BLOCK_I, BLOCK_J], tl.float64)
    b_D_ign_sum = tl.zeros([BLOCK_I, BLOCK_J], tl.float64)
    b_a = tl.zeros([BLOCK_I, BLOCK_J], tl.float64)
    b_DV = tl.zeros([BLOCK_I, BLOCK_J, BLOCK_V], tl.float32)
    for pid_i in range(0, tl.cdiv(at[1], BLOCK_I)):
        rows, kinds, m_i, b_f = load_inputs(p_a, at, pid_i, BLOCK_I)
        b_D = load_D_use(p_R, rows, m_i, o_j, b_f, t, n_rows, J)
        b_V = load_votes(p_V, p_B, rows, kinds, m_i, o_j, J, C, H, BLOCK_V, B_K)
        b_use, b_ign = load_beta(p_use, kinds, m_i, o_j, J, BETA_K), load_beta(p_ign, kinds, m_i, o_j, J, BETA_K)
        b_D64 = b_D.to(tl.float64)
        b_D_ign = tl.where(m_i[:, None], b_f[:, None].to(tl.float64) - b_D64, 0.0)
        b_a += b_use.to(tl.float64) * b_D64 - b_ign.to(tl.float64) * b_D_ign
        b_D_sum += b_D64
        b_D_ign_sum += b_D_ign
        b_DV += b_D[:, :, None] * b_V
    b_D_total = tl.sum(b_D_sum, 0)
    b_used = b_D_total + eps
    b_mu = (tl.sum(b_DV.to(tl.float64), 0) / b_used[:, None]).to(tl.float32)
    b_DE = tl.zeros([BLOCK_I, BLOCK_J, BLOCK_V], tl.float32)
    b_DEE = tl.zeros([BLOCK_I, BLOCK_J, BLOCK_V], tl.float32)
    for pid_i in range(0, tl.cdiv(at[1], BLOCK_I)):
        rows, kinds, m_i, b_f = load_inputs(p_a, at, pid_i, BLOCK_I)
        b_D = load_D_use(p_R, rows, m_i, o_j, b_f, t, n_rows, J)
        b_E = load_votes(p_V, p_B, rows, kinds, m_i, o_j, J, C, H, BLOCK_V, B_K) - b_mu[None, :, :]
        b_DxE = b_D[:, :, None] * b_E
        b_DE += b_DxE
        b_DEE += b_DxE * b_E
    b_DE_sum, b_DEE_sum = tl.sum(b_DE.to(tl.float64), 0), tl.sum(b_DEE.to(tl.float64), 0)
    b_sig2 = b_DEE_sum / b_used[:, None] + eps
    b_score = tl.sum(b_a, 0)
    b_log = log_sigmoid(b_score)
    b_p = tl.full([BLOCK_J, BLOCK_V], 1.0, tl.float32)
    if GAUSSIAN:
        b_p = (0.5 / b_sig2).to(tl.float32)
        m_v = (tl.arange(0, BLOCK_V) < C * H)[None, :]
        b_log -= 0.5 * tl.sum(tl.where(m_v, tl.log(6.283185307179586 * b_sig2), 0.0), 1)
    m_j = o_j < J
    p_row, step = p_scalars + (t * 4 * n_b + b) * J + o_j, tl.cast(n_b, tl.int64) * J
    tl.store(p_row, b_score.to(tl.float32), mask=m_j)
    tl.store(p_row + step, b_D_total.to(tl.float32), mask=m_j)
    tl.store(p_row + 2 * step, tl.sum(b_D_ign_sum, 0).to(tl.float32), mask=m_j)
    tl.store(p_row + 3 * step, b_log.to(tl.float32), mask=m_j)
    row = t * 4 * n_b + b
    store_vector(p_vectors, row, o_j, m_j, b_mu, J, C, H)
    store_vector(p_vectors, row + n_b, o_j, m_j, b_p, J, C, H)
    store_vector(p_vectors, row + 2 * n_b, o_j, m_j, b_DE_sum.to(tl.float32), J, C, H)
    store_vector(p_vectors, row + 3 * n_b, o_j, m_j, b_DEE_sum.to(tl.float32), J, C, H)
    m_last = m_j & (t == n_iters - 1)
    tl.store(p_a_out + b * J + o_j, b_score.to(tl.float32), mask=m_last)
    store_vector(p_mu_out, b, o_j, m_last, b_mu, J, C, H)
    store_vector(p_sig2_out, b, o_j, m_last, b_sig2.to(tl.float32), J, C, H)


@triton.jit
def load_logits(p_rows, p_log, m_i, first_j, b_least, J, BLOCK_J: tl.constexpr):
    """Load logits `[i, j]` of a tile from squared distances."""
    o_j = first_j + tl.arange(0, BLOCK_J)
    b_dist = tl.load(p_rows + o_j[None, :], mask=m_i[:, None] & (o_j < J)[None, :], other=0.0)
    return tl.load(p_log + o_j, mask=o_j < J, other=float("-inf"))[None, :] + (b_least[:, None] - b_dist)


@triton.jit
def assign_inputs(
    p_a, p_offsets, p_V, p_B, p_R, p_vectors, p_scalars, unit, t, n_b, first_b, n_local, n_inp, n_places, n_rows, J,
    C: tl.constexpr, H: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_V: tl.constexpr,
    B_K: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Compute R of a tile of inputs from the models before; `p_R` holds squared distances until all outputs are known.

    Distances are counted from the least: they may be so large and alike that scores decide.
    """
    n_tiles = tl.cdiv(n_inp, BLOCK_I)
    local, pid_i = unit // n_tiles, unit % n_tiles
    b = tl.cast(first_b + local, tl.int64)
    at = locate_inputs(p_offsets, b, local, n_local, n_inp, n_places, PACKED)
    rows, kinds, m_i, _ = load_inputs(p_a, at, pid_i, BLOCK_I)
    b_least = tl.full([BLOCK_I], MAX_DISTANCE, tl.float32)
    row = (t - 1) * 4 * n_b + b
    p_log = p_scalars + ((t - 1) * 4 * n_b + 3 * n_b + b) * J
    p_rows = p_R + ((t - 1) * tl.cast(n_rows, tl.int64) + rows[:, None]) * J
    for first_j in range(0, J, BLOCK_J):
        o_j = first_j + tl.arange(0, BLOCK_J)
        b_mu = load_vector(p_vectors, row, o_j, J, C, H, BLOCK_V)
        b_p = load_vector(p_vectors, row + n_b, o_j, J, C, H, BLOCK_V)
        b_E = load_votes(p_V, p_B, rows, kinds, m_i, o_j, J, C, H, BLOCK_V, B_K) - b_mu[None, :, :]
        b_dist = min_nan(tl.sum(mul_without_fma(b_E * b_p[None, :, :], b_E), 2), MAX_DISTANCE)
        tl.store(p_rows + o_j[None, :], b_dist, mask=m_i[:, None] & (o_j < J)[None, :])
        b_least = tl.minimum(b_least, tl.min(tl.where((o_j < J)[None, :], b_dist, MAX_DISTANCE), 1))
    tl.debug_barrier()
    b_max = tl.full([BLOCK_I], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_I], tl.float32)
    for first_j in range(0, J, BLOCK_J):
        b_logit = load_logits(p_rows, p_log, m_i, first_j, b_least, J, BLOCK_J)
        b_new = tl.maximum(b_max, tl.max(b_logit, 1))
        b_sum = b_sum * tl.exp(b_max - b_new) + tl.sum(tl.exp(b_logit - b_new[:, None]), 1)
        b_max = b_new
    for first_j in range(0, J, BLOCK_J):
        b_logit = load_logits(p_rows, p_log, m_i, first_j, b_least, J, BLOCK_J)
        o_j = first_j + tl.arange(0, BLOCK_J)
        m = m_i[:, None] & (o_j < J)[None, :]
        tl.store(p_rows + o_j[None, :], tl.exp(b_logit - b_max[:, None]) / b_sum[:, None], mask=m)


@triton.jit(do_not_specialize=RUNTIME_SIZES)
def stored_fwd_kernel(
    p_count, first, last, p_a, p_offsets, p_V, p_B, p_use, p_ign, p_R, p_vectors, p_scalars, p_a_out, p_mu_out,
    p_sig2_out, n_b, first_b, n_local, n_inp, n_places, n_rows, n_iters, J, eps, C: tl.constexpr, H: tl.constexpr,
    SUM_I: tl.constexpr, SUM_J: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, BLOCK_V: tl.constexpr,
    B_K: tl.constexpr, BETA_K: tl.constexpr, PACKED: tl.constexpr, GAUSSIAN: tl.constexpr,
):  # fmt: skip
    """Run phases `first` to `last`: models of the first iteration, then assignments and models of each other."""
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        t = (phase + 1) // 2
        if phase % 2 == 0:
            for unit in range(pid, n_local * tl.cdiv(J, SUM_J), n_pids):
                compute_models(
                    p_a, p_offsets, p_V, p_B, p_use, p_ign, p_R, p_vectors, p_scalars, p_a_out, p_mu_out, p_sig2_out,
                    unit, t, n_b, first_b, n_local, n_inp, n_places, n_rows, n_iters, J, eps, C, H, SUM_I, SUM_J,
                    BLOCK_V, B_K, BETA_K, PACKED, GAUSSIAN,
                )  # fmt: skip
        else:
            for unit in range(pid, n_local * tl.cdiv(n_inp, BLOCK_I), n_pids):
                assign_inputs(
                    p_a, p_offsets, p_V, p_B, p_R, p_vectors, p_scalars, unit, t, n_b, first_b, n_local, n_inp,
                    n_places, n_rows, J, C, H, BLOCK_I, BLOCK_J, BLOCK_V, B_K, PACKED,
                )  # fmt: skip
