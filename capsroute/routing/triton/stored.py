"""Forward kernel of the stored form, whose votes lie in memory: matrix products form them, the kernels read them.

Axes: `b` samples, `i` inputs, `j` outputs, `c` covector, `h` output properties, `v` c and h together, `t` iterations.
Inputs come as kinds at places, `i = kind * n_places + place`. Rows `n` are the inputs of a piece of the batch, ordered
by kind, sample and place; packed samples, which have one kind, lie one after the other.
"""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from collections import namedtuple
from typing import Any, NamedTuple

import triton
import triton.language as tl

from .grid import wait_for_all
from .numerics import LOG_PI, MAX_DISTANCE, log_sigmoid, max_nan, min_nan, mul_without_fma, sample_range, sum_slots
from .sizes import Model

SLOTS = tl.constexpr(8)
"""Slots whose sums are loaded at a time."""


class Args(NamedTuple):
    """Inputs, parameters, and what the forward pass keeps."""

    a: Any  # [n]
    offsets: Any  # [b + 1]
    V: Any  # [n, c, j, h], or if BY_OUTPUT [k, j, n of a kind, c, h]; without biases that all inputs share
    B: Any  # biases that all inputs share, [j, c, h]
    use: Any  # [k|1, j]
    ign: Any  # [k|1, j]
    R: Any  # from the second iteration on, [t, n, j]
    vectors: Any  # mu - B, precisions, and sums of D_use times distances E to mu and times E^2, [t, 4, b, j, v]
    scalars: Any  # scores, sums of D_use and of D_ign, what outputs add to logits and its rounding error, [t, 5, b, j]


class Sums(NamedTuple):
    """Sums over the inputs of each slot, of a piece of the batch."""

    vectors: Any = "float64 slots 2 piece j v"  # of D_use times distances from a base and times their squares
    scalars: Any = "float64 slots 3 piece j"  # of D_use, D_ign and terms of the score


Counts = namedtuple("Counts", "b first_b n_local i n_places n_rows n_iters slots j")
"""Sizes: samples of the batch, the first and the number of a piece's, inputs, places, rows, iterations, outputs.

The inputs of a sample are divided into slots where they are summed over.
"""


class Tile(NamedTuple):
    """Constants that kernels are compiled for."""

    C: int
    H: int
    SUM_I: int  # inputs and outputs of a tile where inputs are summed over
    SUM_J: int
    BLOCK_I: int  # the same where outputs are
    BLOCK_J: int
    BLOCK_M: int  # outputs of a tile of models
    BLOCK_V: int
    ONE_J: bool  # all outputs are in one tile of sums
    BY_OUTPUT: bool
    SHARED_B: bool  # all inputs share biases
    BETA_K: bool  # betas differ between kinds
    PACKED: bool
    GAUSSIAN: bool


RUNTIME_COUNTS = ("first", "last", *Counts._fields[:-1])
"""Arguments that kernels are not specialised for."""


Sample = namedtuple("Sample", "b start n first_row n_places kind_rows")
"""A sample: its number, where its inputs start, how many there are, and the terms of a row's number."""


Rows = namedtuple("Rows", "o_i first row per_kind kind m f")
"""The inputs `[i]` of a tile: offsets in the batch, first row, rows from there, rows of a kind, kinds, mask, f."""


@triton.jit
def locate_sample(args, size, local, T: tl.constexpr):
    """Locate a piece's sample."""
    b = tl.cast(size.first_b + local, tl.int64)
    start, n = sample_range(args.offsets, b, size.i, T.PACKED)
    if T.PACKED:
        return Sample(b, start, n, start, size.i, 0)
    else:
        first_row = tl.cast(local, tl.int64) * size.n_places
        return Sample(b, start, n, first_row, size.n_places, size.n_local * size.n_places)


@triton.jit
def load_inputs(args, sample, pid_i, BLOCK_I: tl.constexpr):
    """Load a tile's inputs."""
    o_i, n_places = tl.arange(0, BLOCK_I), tl.maximum(sample.n_places, 1)
    i, first_kind = pid_i * BLOCK_I + o_i, pid_i * BLOCK_I // n_places
    kind, m_i = i // n_places, i < sample.n
    b_a = tl.load(args.a + sample.start + i, mask=m_i, other=float("-inf")).to(tl.float32)
    first_of_kind = sample.first_row + tl.cast(first_kind, tl.int64) * sample.kind_rows
    first = first_of_kind + pid_i * BLOCK_I - first_kind * n_places
    row = o_i + (kind - first_kind) * (sample.kind_rows - n_places)  # fits 32 bits, as pieces of several samples do
    return Rows(sample.start + i, first, row, sample.kind_rows, kind, m_i, tl.sigmoid(b_a))


@triton.jit
def locate_votes(p_V, rows, o_j, j, T: tl.constexpr):
    """Return pointers `[i, j, v]` to votes, and which exist."""
    o_v = tl.arange(0, T.BLOCK_V)
    m_jv = (o_j < j)[:, None] & (o_v < T.C * T.H)[None, :]
    m_ijv = rows.m[:, None, None] & m_jv[None, :, :]
    if T.BY_OUTPUT:  # of kinds before, of outputs before, and of rows of the kind
        o_i = rows.row + rows.kind * ((j - 1) * rows.per_kind)
        o_jv = o_j[:, None] * (rows.per_kind * T.C * T.H) + o_v[None, :]
    else:
        o_i = rows.row * j
        o_jv = o_j[:, None] * T.H + (o_v // T.H * j * T.H + o_v % T.H)[None, :]
    p_first = p_V + rows.first * (T.C * T.H) * (1 if T.BY_OUTPUT else j)
    return p_first + (o_i[:, None, None] * (T.C * T.H) + o_jv[None, :, :]), m_ijv


@triton.jit
def load_votes(args, size, rows, o_j, T: tl.constexpr):
    """Load votes `[i, j, v]`."""
    p_own, m_own = locate_votes(args.V, rows, o_j, size.j, T)
    return tl.load(p_own, mask=m_own, other=0.0)


@triton.jit
def load_vector(p_x, row, o_j, m_j, j, T: tl.constexpr):
    """Load a tile's numbers `[j, v]` of a row `[j, v]`."""
    o_v = tl.arange(0, T.BLOCK_V)
    p_own = p_x + row * j * (T.C * T.H) + o_j[:, None] * (T.C * T.H) + o_v[None, :]
    return tl.load(p_own, mask=m_j[:, None] & (o_v < T.C * T.H)[None, :], other=0.0)


@triton.jit
def store_vector(p_x, row, o_j, m_j, j, b_x, T: tl.constexpr):
    """Store a tile's numbers `[j, v]` of a row `[j, v]`."""
    o_v = tl.arange(0, T.BLOCK_V)
    p_own = p_x + row * j * (T.C * T.H) + o_j[:, None] * (T.C * T.H) + o_v[None, :]
    tl.store(p_own, b_x, mask=m_j[:, None] & (o_v < T.C * T.H)[None, :])


@triton.jit
def store_sums(sums, size, slot, local, o_j, b_one, b_two, b_scalar, T: tl.constexpr):
    """Store a slot's sums over inputs of vectors `[i, j, v]` and of a scalar `[i, j]`; return where scalars lie."""
    b_one, b_two = tl.sum(b_one.to(tl.float64), 0), tl.sum(b_two.to(tl.float64), 0)
    m_j, row = o_j < size.j, tl.cast(slot, tl.int64) * 2 * size.n_local + local
    store_vector(sums.vectors, row, o_j, m_j, size.j, b_one, T)
    store_vector(sums.vectors, row + size.n_local, o_j, m_j, size.j, b_two, T)
    p_own = sums.scalars + (tl.cast(slot, tl.int64) * 3 * size.n_local + local) * size.j + o_j
    tl.store(p_own, tl.sum(b_scalar.to(tl.float64), 0), mask=m_j)
    return p_own


@triton.jit
def sum_vectors(sums, size, n_slots, local, o_j, which: tl.constexpr, T: tl.constexpr):
    """Sum the first or the second vectors `[j, v]` of all slots."""
    o_v = tl.arange(0, T.BLOCK_V)
    o_jv = o_j[:, None] * (T.C * T.H) + o_v[None, :]
    m_jv = (o_j < size.j)[:, None] & (o_v < T.C * T.H)[None, :]
    row = tl.cast(which * size.n_local + local, tl.int64) * size.j * (T.C * T.H)
    stride = tl.cast(2 * size.n_local, tl.int64) * size.j * (T.C * T.H)
    return sum_slots(sums.vectors + row, n_slots, stride, o_jv, m_jv, SLOTS)


@triton.jit
def sum_scalars(sums, size, n_slots, local, o_j, which: tl.constexpr):
    """Sum scalars `[j]` of all slots."""
    row = (tl.cast(which * size.n_local, tl.int64) + local) * size.j
    stride = tl.cast(3 * size.n_local, tl.int64) * size.j
    return sum_slots(sums.scalars + row, n_slots, stride, o_j, o_j < size.j, SLOTS)


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
def locate_pairs(p_x, size, rows, o_j, t):
    """Return pointers `[i, j]` to pairs of iteration t, of those from the second on."""
    first = (tl.cast(t - 1, tl.int64) * size.n_rows + rows.first) * size.j
    return p_x + first + (rows.row[:, None] * size.j + o_j[None, :])


@triton.jit
def load_R(args, size, rows, o_j, t):
    """Load R `[i, j]` of iteration t, zero where there is no pair; in the first all outputs share an input."""
    m = mask_pairs(rows, o_j, size.j)
    b_R = tl.load(locate_pairs(args.R, size, rows, o_j, t), mask=m & (t > 0), other=0.0)
    return tl.where(m, tl.where(t == 0, 1.0 / size.j, b_R), 0.0)


@triton.jit
def load_logs(args, size, b, t, o_j, m_j):
    """Load what outputs add to logits `[j]` and its rounding error; outputs that do not exist get no input."""
    p_log = args.scalars + (t * 5 * size.b + 3 * size.b + b) * size.j + o_j
    b_log_lo = tl.load(p_log + tl.cast(size.b, tl.int64) * size.j, mask=m_j, other=0.0)
    return tl.where(o_j < size.j, tl.load(p_log, mask=m_j, other=0.0), float("-inf")), b_log_lo


@triton.jit
def load_model(args, size, b, t, o_j, exists, T: tl.constexpr):
    """Load capsules `[j, v]` of iteration t, zeros if there are none yet; those that do not exist get no input."""
    here, m_j = t * 4 * size.b + b, (o_j < size.j) & exists
    b_mu = load_vector(args.vectors, here, o_j, m_j, size.j, T)
    b_log, b_log_lo = load_logs(args, size, b, t, o_j, m_j)
    return Model(b_mu, load_vector(args.vectors, here + size.b, o_j, m_j, size.j, T), b_log, b_log_lo)


@triton.jit
def compute_distances(b_E, b_p):
    """Compute squared distances `[i, j]`, weighted by precisions, from distances to mu."""
    return min_nan(tl.sum(mul_without_fma(b_E * b_p[None, :, :], b_E), 2), MAX_DISTANCE)


@triton.jit
def exp_logits(b_dist, b_log, b_log_lo, b_max):
    """Compute `exp(logits - max)` `[i, j]`; large terms are subtracted first, for they cancel.

    Distances are counted from the least: they may be so large and alike that scores decide.
    """
    return tl.exp((b_log[None, :] - b_max[:, None]) + b_dist + b_log_lo[None, :])


@triton.jit
def compute_R(b_E, model, m):
    """Compute R `[i, j]` from the distances to all outputs."""
    b_dist = compute_distances(b_E, model.p)
    b_dist = tl.min(tl.where(m, b_dist, MAX_DISTANCE), 1)[:, None] - b_dist
    b_exp = exp_logits(b_dist, model.log, model.log_lo, tl.max(model.log[None, :] + b_dist, 1))
    return b_exp / tl.sum(b_exp, 1)[:, None]


@triton.jit
def sum_inputs(args, sums, size, unit, step, T: tl.constexpr):
    """Sum D_use, D_ign, scores, and distances from a base, over a slot's inputs, for a tile of outputs.

    The base is zero in the first step. In the second, which repeats the first iteration, it is the mean that the first
    found, and in later ones the mean of the iteration before: squares of distances from there do not cancel.
    """
    n_tiles, t = tl.cdiv(size.j, T.SUM_J), tl.maximum(step - 1, 0)
    o_j = unit % n_tiles * T.SUM_J + tl.arange(0, T.SUM_J)
    m_j, slot, local = o_j < size.j, unit // n_tiles % size.slots, unit // n_tiles // size.slots
    sample = locate_sample(args, size, local, T)
    model = load_model(args, size, sample.b, tl.maximum(step - 2, 0), o_j, step > 0, T)
    b_D_sum = tl.full([T.SUM_I, T.SUM_J], 0.0, tl.float64)
    b_D_ign_sum = tl.full([T.SUM_I, T.SUM_J], 0.0, tl.float64)
    b_a = tl.full([T.SUM_I, T.SUM_J], 0.0, tl.float64)
    b_DE = tl.full([T.SUM_I, T.SUM_J, T.BLOCK_V], 0.0, tl.float32)
    b_DEE = tl.full([T.SUM_I, T.SUM_J, T.BLOCK_V], 0.0, tl.float32)
    for pid_i in range(slot, tl.cdiv(sample.n, T.SUM_I), size.slots):
        rows = load_inputs(args, sample, pid_i, T.SUM_I)
        b_E = load_votes(args, size, rows, o_j, T) - model.mu[None, :, :]
        m = mask_pairs(rows, o_j, size.j)
        b_R = tl.where(m, 1.0 / size.j, 0.0)
        if t > 0:
            if T.ONE_J:
                b_R = tl.where(m, compute_R(b_E, model, m), 0.0)
                tl.store(locate_pairs(args.R, size, rows, o_j, t), b_R, mask=m)
            else:
                b_R = tl.load(locate_pairs(args.R, size, rows, o_j, t), mask=m, other=0.0)
        b_D = rows.f[:, None] * b_R
        b_use, b_ign = load_beta(args.use, rows, o_j, size.j, T), load_beta(args.ign, rows, o_j, size.j, T)
        b_D64 = b_D.to(tl.float64)
        b_D_ign = tl.where(rows.m[:, None], rows.f[:, None].to(tl.float64) - b_D64, 0.0)
        b_a += b_use.to(tl.float64) * b_D64 - b_ign.to(tl.float64) * b_D_ign
        b_D_sum += b_D64
        b_D_ign_sum += b_D_ign
        b_DxE = b_D[:, :, None] * b_E
        b_DE += b_DxE
        b_DEE += b_DxE * b_E
    p_own = store_sums(sums, size, slot, local, o_j, b_DE, b_DEE, b_D_sum, T)
    tl.store(p_own + size.n_local * size.j, tl.sum(b_D_ign_sum, 0), mask=m_j)
    tl.store(p_own + 2 * size.n_local * size.j, tl.sum(b_a, 0), mask=m_j)


@triton.jit
def compute_models(args, sums, outs, size, eps, unit, step, T: tl.constexpr):
    """Compute a tile of output capsules from the sums of all slots."""
    n_tiles, t = tl.cdiv(size.j, T.BLOCK_M), tl.maximum(step - 1, 0)
    o_j, local = unit % n_tiles * T.BLOCK_M + tl.arange(0, T.BLOCK_M), unit // n_tiles
    m_j, b = o_j < size.j, tl.cast(size.first_b + local, tl.int64)
    b_D = sum_scalars(sums, size, size.slots, local, o_j, 0)
    b_D_ign = sum_scalars(sums, size, size.slots, local, o_j, 1)
    b_score = sum_scalars(sums, size, size.slots, local, o_j, 2)
    b_DE = sum_vectors(sums, size, size.slots, local, o_j, 0, T)
    b_DEE = sum_vectors(sums, size, size.slots, local, o_j, 1, T)
    b_base = load_model(args, size, b, tl.maximum(step - 2, 0), o_j, step > 0, T).mu.to(tl.float64)
    b_used, b_B = (b_D + eps)[:, None], tl.full([T.BLOCK_M, T.BLOCK_V], 0.0, tl.float32)
    if T.SHARED_B:
        b_B = load_vector(args.B, 0, o_j, m_j, size.j, T)
    b_mu_out = (b_DE + (b_base + b_B) * b_D[:, None]) / b_used
    b_mu = (b_mu_out - b_B).to(tl.float32)  # votes are less B too
    b_shift = b_mu.to(tl.float64) - b_base
    b_DEE = max_nan(b_DEE + b_shift * (b_shift * b_D[:, None] - 2.0 * b_DE), 0.0)
    b_sig2 = b_DEE / b_used + eps
    b_log = log_sigmoid(b_score)
    b_p = tl.full([T.BLOCK_M, T.BLOCK_V], 1.0, tl.float32)
    if T.GAUSSIAN:
        b_p = (0.5 / b_sig2).to(tl.float32)
        m_v = (tl.arange(0, T.BLOCK_V) < T.C * T.H)[None, :]
        # the same rounding in distances and in logarithms nearly cancels
        b_log += 0.5 * tl.sum(tl.where(m_v, tl.log(b_p.to(tl.float64)) - LOG_PI, 0.0), 1)
    b_log_hi = b_log.to(tl.float32)
    here, stride = t * 4 * size.b + b, tl.cast(size.b, tl.int64) * size.j
    p_row = args.scalars + (t * 5 * size.b + b) * size.j + o_j
    tl.store(p_row, b_score.to(tl.float32), mask=m_j)
    tl.store(p_row + stride, b_D.to(tl.float32), mask=m_j)
    tl.store(p_row + 2 * stride, b_D_ign.to(tl.float32), mask=m_j)
    tl.store(p_row + 3 * stride, b_log_hi, mask=m_j)
    tl.store(p_row + 4 * stride, (b_log - b_log_hi).to(tl.float32), mask=m_j)
    store_vector(args.vectors, here, o_j, m_j, size.j, b_mu, T)
    store_vector(args.vectors, here + size.b, o_j, m_j, size.j, b_p, T)
    store_vector(args.vectors, here + 2 * size.b, o_j, m_j, size.j, (b_DE - b_shift * b_D[:, None]).to(tl.float32), T)
    store_vector(args.vectors, here + 3 * size.b, o_j, m_j, size.j, b_DEE.to(tl.float32), T)
    m_last = m_j & (step == size.n_iters)
    tl.store(outs.a + b * size.j + o_j, b_score.to(tl.float32), mask=m_last)
    store_vector(outs.mu, b, o_j, m_last, size.j, b_mu_out.to(tl.float32), T)
    store_vector(outs.sig2, b, o_j, m_last, size.j, b_sig2.to(tl.float32), T)


@triton.jit
def load_distances(args, size, rows, sample, o_j, t, b_least):
    """Load what outputs add to logits, and the least squared distance less those of a tile `[i, j]`."""
    m_j = o_j < size.j
    b_dist = tl.load(locate_pairs(args.R, size, rows, o_j, t), mask=mask_pairs(rows, o_j, size.j), other=0.0)
    b_log, b_log_lo = load_logs(args, size, sample.b, t - 1, o_j, m_j)
    return b_log, b_log_lo, b_least[:, None] - b_dist


@triton.jit
def assign_inputs(args, size, unit, t, T: tl.constexpr):
    """Compute R of a tile of inputs over several tiles of outputs; R holds squared distances until all are known."""
    n_tiles = tl.cdiv(size.i, T.BLOCK_I)
    sample = locate_sample(args, size, unit // n_tiles, T)
    rows = load_inputs(args, sample, unit % n_tiles, T.BLOCK_I)
    b_least = tl.full([T.BLOCK_I], MAX_DISTANCE, tl.float32)
    for first_j in range(0, size.j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        m = mask_pairs(rows, o_j, size.j)
        model = load_model(args, size, sample.b, t - 1, o_j, True, T)
        b_dist = compute_distances(load_votes(args, size, rows, o_j, T) - model.mu[None, :, :], model.p)
        tl.store(locate_pairs(args.R, size, rows, o_j, t), b_dist, mask=m)
        b_least = tl.minimum(b_least, tl.min(tl.where(m, b_dist, MAX_DISTANCE), 1))
    tl.debug_barrier()
    b_max = tl.full([T.BLOCK_I], float("-inf"), tl.float32)
    b_sum = tl.full([T.BLOCK_I], 0.0, tl.float32)
    for first_j in range(0, size.j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        b_log, b_log_lo, b_dist = load_distances(args, size, rows, sample, o_j, t, b_least)
        b_new = tl.maximum(b_max, tl.max(b_log[None, :] + b_dist, 1))
        b_sum = b_sum * tl.exp(b_max - b_new) + tl.sum(exp_logits(b_dist, b_log, b_log_lo, b_new), 1)
        b_max = b_new
    for first_j in range(0, size.j, T.BLOCK_J):
        o_j = first_j + tl.arange(0, T.BLOCK_J)
        b_log, b_log_lo, b_dist = load_distances(args, size, rows, sample, o_j, t, b_least)
        b_R = exp_logits(b_dist, b_log, b_log_lo, b_max) / b_sum[:, None]
        tl.store(locate_pairs(args.R, size, rows, o_j, t), b_R, mask=mask_pairs(rows, o_j, size.j))


@triton.jit(do_not_specialize=RUNTIME_COUNTS)
def stored_fwd_kernel(
    p_count, first, last, b, first_b, n_local, i, n_places, n_rows, n_iters, slots, j, eps, args, sums, outs,
    T: tl.constexpr,
):  # fmt: skip
    """Run phases `first` to `last`: in each step R unless sums compute it, sums over inputs, and models.

    The first two steps, both of the first iteration, need no R.
    """
    size = Counts(b, first_b, n_local, i, n_places, n_rows, n_iters, slots, j)
    pid, n_pids = tl.program_id(0), tl.num_programs(0)
    PARTS: tl.constexpr = 2 if T.ONE_J else 3  # pyright: ignore[reportAssignmentType]
    for phase in range(first, last):
        if phase > first:
            wait_for_all(p_count)
        step = tl.where(phase < 4, phase // 2, 2 + (phase - 4) // PARTS)
        part = tl.where(phase < 4, 1 + phase % 2, 3 - PARTS + (phase - 4) % PARTS)  # pyright: ignore
        if not T.ONE_J:  # noqa: SIM102 - known when compiled
            if part == 0:
                for unit in range(pid, n_local * tl.cdiv(i, T.BLOCK_I), n_pids):
                    assign_inputs(args, size, unit, step - 1, T)
        if part == 1:
            for unit in range(pid, n_local * slots * tl.cdiv(j, T.SUM_J), n_pids):
                sum_inputs(args, sums, size, unit, step, T)
        if part == 2:
            for unit in range(pid, n_local * tl.cdiv(j, T.BLOCK_M), n_pids):
                compute_models(args, sums, outs, size, eps, unit, step, T)
