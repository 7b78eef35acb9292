"""Forward kernel of the stored form, whose votes lie in memory: matrix products form them, the kernels read them.

Axes: `b` samples, `i` inputs, `j` outputs, `c` covector, `h` output properties, `v` c and h together, `t` iterations.
Inputs come as kinds at places, `i = kind * n_places + place`. Rows `n` are the inputs of a piece of the batch, ordered
by kind, sample and place; packed samples, which have one kind, lie one after the other.
"""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .grid import wait_for_all
from .numerics import log_sigmoid, min_nan, mul_without_fma, sample_range

MAX_DISTANCE = tl.constexpr(1e38)
"""Of squared distances, so that their differences stay finite."""


class Args(NamedTuple):
    """Inputs, parameters, and what the forward pass keeps."""

    a: Any  # [n]
    offsets: Any  # [b + 1]
    V: Any  # without biases, [n, c, j, h]
    B: Any  # [k|1, j, c, h]
    use: Any  # [k|1, j]
    ign: Any  # [k|1, j]
    R: Any  # from the second iteration on, [t, n, j]
    vectors: Any  # mu, precisions, and sums over inputs of D_use times distances E to mu and times E^2, [t, 4, b, j, v]
    scalars: Any  # scores, sums of D_use and of D_ign, and what outputs add to logits, [t, 4, b, j]


class Counts(NamedTuple):
    """Sizes: samples of the batch, the first and the number of a piece's, inputs, places, rows, iterations, outputs."""

    b: Any
    first_b: Any
    n_local: Any
    i: Any
    n_places: Any
    n_rows: Any
    n_iters: Any
    j: Any


class Tile(NamedTuple):
    """Constants that kernels are compiled for."""

    C: int
    H: int
    SUM_I: int  # inputs and outputs of a tile where inputs are summed over
    SUM_J: int
    BLOCK_I: int  # the same where outputs are
    BLOCK_J: int
    BLOCK_V: int
    B_K: bool  # biases differ between kinds
    BETA_K: bool  # betas do
    PACKED: bool
    GAUSSIAN: bool


RUNTIME_COUNTS = ("first", "last", *Counts._fields[:-1])
"""Arguments that kernels are not specialised for."""


class Sample(NamedTuple):
    """A sample: its number, where its inputs start, how many there are, and the terms of a row's number."""

    b: Any
    start: Any
    n: Any
    first_row: Any
    n_places: Any
    kind_rows: Any


class Rows(NamedTuple):
    """The inputs `[i]` of a tile: offsets in the batch, rows, kinds, mask, and f(a_inp), zero past the last."""

    o_i: Any
    n: Any
    kind: Any
    m: Any
    f: Any


@triton.jit
def locate_sample(args, size, local, T: tl.constexpr):
    """Locate a piece's sample."""
    b = tl.cast(size.first_b + local, tl.int64)
    start, n = sample_range(args.offsets, b, size.i, T.PACKED)
    if T.PACKED:
        return Sample(b, start, n, start, size.i, tl.cast(0, tl.int64))
    else:
        per_kind = tl.cast(size.n_local, tl.int64) * size.n_places
        return Sample(b, start, n, tl.cast(local, tl.int64) * size.n_places, size.n_places, per_kind)


@triton.jit
def load_inputs(args, sample, pid_i, BLOCK_I: tl.constexpr):
    """Load a tile's inputs."""
    i = pid_i * BLOCK_I + tl.arange(0, BLOCK_I)
    kind, o_i, m_i = i // tl.maximum(sample.n_places, 1), sample.start + i, i < sample.n
    b_a = tl.load(args.a + o_i, mask=m_i, other=float("-inf")).to(tl.float32)
    row = sample.first_row + kind * sample.kind_rows + (i - kind * sample.n_places)
    return Rows(o_i, row, kind, m_i, tl.sigmoid(b_a))


@triton.jit
def offset_votes(o_j, j, T: tl.constexpr):
    """Return offsets `[j, v]` into a row of votes, and which exist."""
    o_v = tl.arange(0, T.BLOCK_V)
    m_jv = (o_j < j)[:, None] & (o_v < T.C * T.H)[None, :]
    return o_j[:, None] * T.H + (o_v // T.H * j * T.H + o_v % T.H)[None, :], m_jv


@triton.jit
def load_votes(args, size, rows, o_j, T: tl.constexpr):
    """Load votes `[i, j, v]` and add their biases."""
    o_jv, m_jv = offset_votes(o_j, size.j, T)
    m_ijv = rows.m[:, None, None] & m_jv[None, :, :]
    b_V = tl.load(args.V + rows.n[:, None, None] * (T.C * size.j * T.H) + o_jv[None, :, :], mask=m_ijv, other=0.0)
    o_B = o_j[:, None] * (T.C * T.H) + tl.arange(0, T.BLOCK_V)[None, :]
    if T.B_K:
        p_B = args.B + rows.kind.to(tl.int64)[:, None, None] * (size.j * T.C * T.H)
        return b_V + tl.load(p_B + o_B[None, :, :], mask=m_ijv, other=0.0)
    else:
        return b_V + tl.load(args.B + o_B, mask=m_jv, other=0.0)[None, :, :]


@triton.jit
def load_vector(p_x, row, o_j, j, T: tl.constexpr):
    """Load a tile's numbers `[j, v]` of a row `[j, v]`."""
    o_v = tl.arange(0, T.BLOCK_V)
    p_own = p_x + row * j * (T.C * T.H) + o_j[:, None] * (T.C * T.H) + o_v[None, :]
    return tl.load(p_own, mask=(o_j < j)[:, None] & (o_v < T.C * T.H)[None, :], other=0.0)


@triton.jit
def store_vector(p_x, row, o_j, m_j, j, b_x, T: tl.constexpr):
    """Store a tile's numbers `[j, v]` of a row `[j, v]`."""
    o_v = tl.arange(0, T.BLOCK_V)
    p_own = p_x + row * j * (T.C * T.H) + o_j[:, None] * (T.C * T.H) + o_v[None, :]
    tl.store(p_own, b_x, mask=m_j[:, None] & (o_v < T.C * T.H)[None, :])


@triton.jit
def load_beta(p_beta, rows, o_j, j, T: tl.constexpr):
    """Load a beta `[i|1, j]`."""
    if T.BETA_K:
        return tl.load(p_beta + rows.kind[:, None] * j + o_j[None, :], mask=mask_pairs(rows, o_j, j), other=0.0)
    else:
        return tl.load(p_beta + o_j, mask=o_j < j, other=0.0)[None, :]


@triton.jit
def mask_pairs(rows, o_j, j):
    """Tell which pairs of an input and an output exist, `[i, j]`."""
    return rows.m[:, None] & (o_j < j)[None, :]


@triton.jit
def offset_pairs(size, rows, o_j, t):
    """Return offsets `[i, j]` of pairs in iteration t, of those from the second on."""
    return ((t - 1) * tl.cast(size.n_rows, tl.int64) + rows.n[:, None]) * size.j + o_j[None, :]


@triton.jit
def load_D_use(args, size, rows, o_j, t):
    """Load D_use `[i, j]` of iteration t; in the first all outputs share an input."""
    m = mask_pairs(rows, o_j, size.j)
    b_R = tl.load(args.R + offset_pairs(size, rows, o_j, t), mask=m & (t > 0), other=0.0)
    return tl.where(m, rows.f[:, None] * tl.where(t == 0, 1.0 / size.j, b_R), 0.0)


@triton.jit
def compute_models(args, outs, size, eps, unit, t, T: tl.constexpr):
    """Compute a tile of output capsules: means over inputs, then variances about them."""
    n_tiles = tl.cdiv(size.j, T.SUM_J)
    o_j = unit % n_tiles * T.SUM_J + tl.arange(0, T.SUM_J)
    m_j = o_j < size.j
    sample = locate_sample(args, size, unit // n_tiles, T)
    b_D_sum = tl.full([T.SUM_I, T.SUM_J], 0.0, tl.float64)
    b_D_ign_sum = tl.full([T.SUM_I, T.SUM_J], 0.0, tl.float64)
    b_a = tl.full([T.SUM_I, T.SUM_J], 0.0, tl.float64)
    b_DV = tl.full([T.SUM_I, T.SUM_J, T.BLOCK_V], 0.0, tl.float32)
    for pid_i in range(0, tl.cdiv(sample.n, T.SUM_I)):
        rows = load_inputs(args, sample, pid_i, T.SUM_I)
        b_D = load_D_use(args, size, rows, o_j, t)
        b_use, b_ign = load_beta(args.use, rows, o_j, size.j, T), load_beta(args.ign, rows, o_j, size.j, T)
        b_D64 = b_D.to(tl.float64)
        b_D_ign = tl.where(rows.m[:, None], rows.f[:, None].to(tl.float64) - b_D64, 0.0)
        b_a += b_use.to(tl.float64) * b_D64 - b_ign.to(tl.float64) * b_D_ign
        b_D_sum += b_D64
        b_D_ign_sum += b_D_ign
        b_DV += b_D[:, :, None] * load_votes(args, size, rows, o_j, T)
    b_D_total = tl.sum(b_D_sum, 0)
    b_used = b_D_total + eps
    b_mu = (tl.sum(b_DV.to(tl.float64), 0) / b_used[:, None]).to(tl.float32)
    b_DE = tl.full([T.SUM_I, T.SUM_J, T.BLOCK_V], 0.0, tl.float32)
    b_DEE = tl.full([T.SUM_I, T.SUM_J, T.BLOCK_V], 0.0, tl.float32)
    for pid_i in range(0, tl.cdiv(sample.n, T.SUM_I)):
        rows = load_inputs(args, sample, pid_i, T.SUM_I)
        b_E = load_votes(args, size, rows, o_j, T) - b_mu[None, :, :]
        b_DxE = load_D_use(args, size, rows, o_j, t)[:, :, None] * b_E
        b_DE += b_DxE
        b_DEE += b_DxE * b_E
    b_DE_sum, b_DEE_sum = tl.sum(b_DE.to(tl.float64), 0), tl.sum(b_DEE.to(tl.float64), 0)
    b_sig2 = b_DEE_sum / b_used[:, None] + eps
    b_score = tl.sum(b_a, 0)
    b_log = log_sigmoid(b_score)
    b_p = tl.full([T.SUM_J, T.BLOCK_V], 1.0, tl.float32)
    if T.GAUSSIAN:
        b_p = (0.5 / b_sig2).to(tl.float32)
        m_v = (tl.arange(0, T.BLOCK_V) < T.C * T.H)[None, :]
        b_log -= 0.5 * tl.sum(tl.where(m_v, tl.log(6.283185307179586 * b_sig2), 0.0), 1)
    here = t * 4 * size.b + sample.b
    p_row, step = args.scalars + here * size.j + o_j, tl.cast(size.b, tl.int64) * size.j
    tl.store(p_row, b_score.to(tl.float32), mask=m_j)
    tl.store(p_row + step, b_D_total.to(tl.float32), mask=m_j)
    tl.store(p_row + 2 * step, tl.sum(b_D_ign_sum, 0).to(tl.float32), mask=m_j)
    tl.store(p_row + 3 * step, b_log.to(tl.float32), mask=m_j)
    store_vector(args.vectors, here, o_j, m_j, size.j, b_mu, T)
    store_vector(args.vectors, here + size.b, o_j, m_j, size.j, b_p, T)
    store_vector(args.vectors, here + 2 * size.b, o_j, m_j, size.j, b_DE_sum.to(tl.float32), T)
    store_vector(args.vectors, here + 3 * size.b, o_j, m_j, size.j, b_DEE_sum.to(tl.float32), T)
    m_last = m_j & (t == size.n_iters - 1)
    tl.store(outs.a + sample.b * size.j + o_j, b_score.to(tl.float32), mask=m_last)
    store_vector(outs.mu, sample.b, o_j, m_last, size.j, b_mu, T)
    store_vector(outs.sig2, sample.b, o_j, m_last, size.j, b_sig2.to(tl.float32), T)


@triton.jit
def load_logits(args, size, rows, b, first_j, t, b_least, T: tl.constexpr):
    """Load logits `[i, j]` of a tile from squared distances, which are counted from the least."""
    o_j = first_j + tl.arange(0, T.BLOCK_J)
    p_log = args.scalars + ((t - 1) * 4 * size.b + 3 * size.b + b) * size.j + o_j
    p_dist = args.R + offset_pairs(size, rows, o_j, t)
    b_dist = tl.load(p_dist, mask=mask_pairs(rows, o_j, size.j), other=0.0)
    return tl.load(p_log, mask=o_j < size.j, other=float("-inf"))[None, :] + (b_least[:, None] - b_dist)


@triton.jit
def assign_inputs(args, size, unit, t, T: tl.constexpr):
    """Compute R of a tile of inputs from the models before; R holds squared distances until all outputs are known.

    Distances are counted from the least: they may be so large and alike that scores decide.
    """
    n_tiles = tl.cdiv(size.i, T.BLOCK_I)
    sample = locate_sample(args, size, unit // n_tiles, T)
    rows = load_inputs(args, sample, unit % n_tiles, T.BLOCK_I)
    before = (t - 1) * 4 * size.b + sample.b
    b_least = tl.full([T.BLOCK_I], MAX_DISTANCE, tl.float32)
    for first_j in range(0, size.j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        m = mask_pairs(rows, o_j, size.j)
        b_p = load_vector(args.vectors, before + size.b, o_j, size.j, T)
        b_E = load_votes(args, size, rows, o_j, T) - load_vector(args.vectors, before, o_j, size.j, T)[None, :, :]
        b_dist = min_nan(tl.sum(mul_without_fma(b_E * b_p[None, :, :], b_E), 2), MAX_DISTANCE)
        tl.store(args.R + offset_pairs(size, rows, o_j, t), b_dist, mask=m)
        b_least = tl.minimum(b_least, tl.min(tl.where(m, b_dist, MAX_DISTANCE), 1))
    tl.debug_barrier()
    b_max = tl.full([T.BLOCK_I], float("-inf"), tl.float32)
    b_sum = tl.full([T.BLOCK_I], 0.0, tl.float32)
    for first_j in range(0, size.j, T.BLOCK_J):
        b_logit = load_logits(args, size, rows, sample.b, first_j, t, b_least, T)
        b_new = tl.maximum(b_max, tl.max(b_logit, 1))
        b_sum = b_sum * tl.exp(b_max - b_new) + tl.sum(tl.exp(b_logit - b_new[:, None]), 1)
        b_max = b_new
    for first_j in range(0, size.j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        b_logit = load_logits(args, size, rows, sample.b, first_j, t, b_least, T)
        b_R = tl.exp(b_logit - b_max[:, None]) / b_sum[:, None]
        tl.store(args.R + offset_pairs(size, rows, o_j, t), b_R, mask=mask_pairs(rows, o_j, size.j))


@triton.jit(do_not_specialize=RUNTIME_COUNTS)
def stored_fwd_kernel(
    p_count, first, last, b, first_b, n_local, i, n_places, n_rows, n_iters, j, eps, args, outs, T: tl.constexpr
):
    """Run phases `first` to `last`: models of the first iteration, then assignments and models of each other."""
    size = Counts(b, first_b, n_local, i, n_places, n_rows, n_iters, j)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        t = (phase + 1) // 2
        if phase % 2 == 0:
            for unit in range(pid, n_local * tl.cdiv(j, T.SUM_J), n_pids):
                compute_models(args, outs, size, eps, unit, t, T)
        else:
            for unit in range(pid, n_local * tl.cdiv(i, T.BLOCK_I), n_pids):
                assign_inputs(args, size, unit, t, T)
