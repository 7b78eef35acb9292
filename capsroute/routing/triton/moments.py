"""The moment form: small capsules whose parameters all inputs share. No vote is formed, not even on chip.

Axes: `i` inputs, `j` outputs, `c` covector, `d` input properties, `h` output properties, `k` features, `v` is `c` and
`h` together. A sample's `phi [i, k]` holds the products `x_cd x_cd'` with `d <= d'`, then `x_cd`, then one, all of
capsules counted from the sample's mean; `S [j, k]` is `D_use' phi`. `first` and `second` say which two numbers of a
capsule a feature multiplies, `c * d` standing for one and beyond it for none. `docs/kernels.md` explains the phases.
"""

# what kernels compute with has other types than Python sees
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportAttributeAccessIssue=false

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .grid import programs_at_once, run_phases, wait_for_all
from .moments_tile import (
    BLOCK_J,
    TINY,
    along_features,
    assign,
    capsules,
    coefficients,
    dot,
    factors,
    gates,
    log_sigmoid,
    mean_of,
    model_of,
    power,
    sample,
    split,
    spread_unit,
    total_of,
    units,
    vote_of,
)
from .sizes import Plan, Sizes


class Tile(NamedTuple):
    """Sizes of a kernel's blocks, and how many of its programs a multiprocessor holds."""

    block_i: int
    warps: int
    per_core: int


TILES = {"fwd": Tile(64, 4, 2), "bwd": Tile(64, 4, 2)}


@triton.jit(noinline=True)
def capsule_sums(
    p_a, p_x, p_offsets, p_mean, n_b, n_inp, n_slots, slot_tiles,
    PACKED: tl.constexpr, CD: tl.constexpr, BLOCK_I: tl.constexpr, BLOCK_X: tl.constexpr,
):  # fmt: skip
    """Phase: every slot's sum of capsules and of one, weighted by their gates."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0  # what it is added to counts in 64 bits
    o_i, o_x = tl.arange(0, BLOCK_I), tl.arange(0, BLOCK_X)
    for unit in range(pid, n_b * n_slots, n_pid):
        u_b, u_q = zero + unit // n_slots, unit % n_slots
        start, n = sample(p_offsets, u_b, n_inp, PACKED)
        b_sum = tl.zeros([BLOCK_I, BLOCK_X], tl.float64)
        for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = tile * BLOCK_I + o_i
            b_x = capsules(p_x + start * CD, i, n, o_x, CD) + (o_x == CD)[None, :].to(tl.float32)
            b_sum += gates(p_a + start, i, n)[:, None] * b_x
        tl.store(p_mean + unit * BLOCK_X + o_x, tl.sum(b_sum, 0))


@triton.jit(noinline=True)
def first_sums(
    p_a, p_x, p_offsets, p_first, p_second, p_mean, p_row_0, p_shift, n_b, n_inp, n_slots, slot_tiles,
    PACKED: tl.constexpr, J: tl.constexpr, CD: tl.constexpr, K: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_X: tl.constexpr,
):  # fmt: skip
    """Phase: every sample's mean, and every slot's sums of features in the first iteration, one row for all outputs."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    o_i, o_k, o_x = tl.arange(0, BLOCK_I), tl.arange(0, K), tl.arange(0, BLOCK_X)
    for unit in range(pid, n_b * n_slots, n_pid):
        u_b, u_q = zero + unit // n_slots, unit % n_slots
        start, n = sample(p_offsets, u_b, n_inp, PACKED)
        b_mean = mean_of(p_mean, u_b, n_slots, CD, BLOCK_X)
        b_total = tl.sum(tl.where(o_x == CD, b_mean, 0.0), 0)
        b_shift = (b_mean / tl.maximum(b_total, TINY)).to(tl.float32).to(tl.float64)
        b_shift = tl.where(o_x < CD, b_shift, 0.0)
        tl.store(p_shift + u_b * BLOCK_X + o_x, tl.where(o_x < CD, b_shift, b_total))  # every slot's program, the same
        b_sum = tl.zeros([BLOCK_I, K], tl.float64)
        for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = tile * BLOCK_I + o_i
            b_x = capsules(p_x + start * CD, i, n, o_x, CD) - b_shift.to(tl.float32)[None, :]
            b_1, b_2 = factors(b_x, p_first, p_second, o_x, o_k, CD)
            b_sum += gates(p_a + start, i, n)[:, None] * (b_1 * b_2)
        tl.store(p_row_0 + unit * K + o_k, tl.sum(b_sum, 0) / J)


@triton.jit(noinline=True)
def feature_sums(
    p_a, p_x, p_offsets, p_first, p_second, p_shift, p_theta, p_log, p_part, n_b, n_inp, n_slots, slot_tiles,
    PACKED: tl.constexpr, J: tl.constexpr, CD: tl.constexpr, K: tl.constexpr, BLOCK_I: tl.constexpr,
    BLOCK_JJ: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Phase: E-step and every slot's sums of features, `D_use' phi`."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    o_i, o_k, o_jj, o_x = tl.arange(0, BLOCK_I), tl.arange(0, K), tl.arange(0, BLOCK_JJ), tl.arange(0, BLOCK_E)
    m_jj = o_jj < J
    for unit in range(pid, n_b * n_slots, n_pid):
        u_b, u_q = zero + unit // n_slots, unit % n_slots
        start, n = sample(p_offsets, u_b, n_inp, PACKED)
        p_own = p_shift + u_b * BLOCK_X
        b_shift = tl.load(p_own + o_x, mask=o_x < CD, other=0.0).to(tl.float32)
        b_scale = tl.load(p_own + CD + 1).to(tl.float32)
        c_high, c_low, c_size = coefficients(p_theta + u_b * J * K, o_jj, o_k, J, K)
        b_log = tl.load(p_log + u_b * J * 2 + o_jj * 2, mask=m_jj, other=0.0)
        b_rest = tl.load(p_log + u_b * J * 2 + o_jj * 2 + 1, mask=m_jj, other=0.0)
        b_S, b_one = tl.zeros([BLOCK_JJ, K], tl.float32), tl.zeros([BLOCK_JJ], tl.float32)
        for tile in range(u_q * slot_tiles, tl.minimum((u_q + 1) * slot_tiles, tl.cdiv(n, BLOCK_I))):
            i = tile * BLOCK_I + o_i
            b_x = (capsules(p_x + start * CD, i, n, o_x, CD) - b_shift[None, :]) * b_scale
            b_1, b_2 = factors(b_x, p_first, p_second, o_x, o_k, CD)
            b_phi = b_1 * b_2
            b_size, b_inverse = power(tl.max(tl.abs(b_phi), 1))
            b_high, b_low = split(b_phi * b_inverse[:, None])
            b_R = assign(b_high, b_low, b_size, c_high, c_low, c_size, b_log, b_rest, m_jj, J == BLOCK_JJ)
            b_f = gates(p_a + start, i, n)
            b_one += tl.sum(b_R * b_f[:, None], 0)
            b_D = b_R * (b_f * b_size)[:, None]
            d_size, d_inverse = power(tl.max(b_D, 0))  # an output that uses little must be as exact as others
            d_high, d_low = split(tl.trans(b_D * d_inverse[None, :]))
            b_S += dot(d_high, d_low, b_high, b_low) * d_size[:, None]
        # scores weigh what is used against what is not, and so need it to the last digit
        b_S = tl.where((tl.load(p_first + o_k) == CD)[None, :], b_one[:, None], b_S)
        p_slot = p_part + (zero + unit) * J * K
        tl.store(p_slot + o_jj[:, None] * K + o_k[None, :], b_S, mask=m_jj[:, None])


@triton.jit(noinline=True)
def models(
    p_W, p_B, p_use, p_ign, p_first, p_second, p_row_0, p_part, p_scratch, p_shift, p_S, p_theta, p_log,
    p_a_out, p_mu_out, p_sig2_out, n_b, t, n_iters, n_slots, eps, stride_W, stride_use, stride_ign,
    GAUSSIAN: tl.constexpr, J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_X: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Phase: the output capsules that an iteration's sums give, and what they mean for the next E-step."""
    pid, n_pid = tl.program_id(0), tl.num_programs(0)
    zero = pid.to(tl.int64) * 0
    blocks = tl.cdiv(J, BLOCK_J)
    o_k, o_v = tl.arange(0, K), tl.arange(0, BLOCK_V)
    for unit in range(pid, n_b * blocks, n_pid):
        u_b = zero + unit // blocks
        o_j = unit % blocks * BLOCK_J + tl.arange(0, BLOCK_J)
        m_j, m_jv = o_j < J, (o_j < J)[:, None] & (o_v < C * H)[None, :]
        row = (t * n_b + u_b) * J
        p_row = p_S + row * K
        p_own = p_shift + u_b * BLOCK_X
        if t == 0:
            b_S = total_of(p_row_0, u_b, o_j, o_k, n_slots, 1, J, K)
            # from now on the sample's spread is the unit of its capsules; all blocks of outputs find and write the same
            b_scale = spread_unit(b_S, p_first, p_second, o_k, C * D)
            tl.store(p_own + C * D + 1, b_scale)
        else:
            b_scale = tl.load(p_own + C * D + 1)
            b_S = total_of(p_part, u_b, o_j, o_k, n_slots, J, J, K)
            b_S = b_S / units(p_first, p_second, b_scale, o_k, C * D)[None, :]
        tl.store(p_row + o_j[:, None] * K + o_k[None, :], b_S, mask=m_j[:, None])
        tl.debug_barrier()
        b_total = tl.load(p_own + C * D)
        b_near = vote_of(p_own, p_W, o_j, o_v, stride_W, J, C, D, H, BLOCK_D)
        _, b_m, _, b_sig2, b_B, b_a, _, _ = model_of(
            p_row, p_W, p_B, p_use, p_ign, b_total, b_near, o_j, o_v, eps, stride_W, stride_use, stride_ign,
            J, C, D, H, K, BLOCK_D,
        )  # fmt: skip
        if t == n_iters - 1:
            at_out = (u_b * J + o_j)[:, None] * (C * H) + o_v[None, :]
            tl.store(p_a_out + u_b * J + o_j, b_a.to(tl.float32), mask=m_j)
            tl.store(p_mu_out + at_out, (b_m + b_B).to(tl.float32), mask=m_jv)
            tl.store(p_sig2_out + at_out, b_sig2.to(tl.float32), mask=m_jv)
        else:
            if GAUSSIAN:
                b_p = 0.5 / b_sig2
                b_g = -0.5 * tl.sum(tl.where(m_jv, tl.log(6.283185307179586 * b_sig2), 0.0), 1)
            else:
                b_p = tl.full([BLOCK_J, BLOCK_V], 1.0, tl.float64)
                b_g = tl.zeros([BLOCK_J], tl.float64)
            b_p = tl.where(m_jv, b_p, 0.0)
            p_p = p_scratch + u_b * (2 * J * BLOCK_V)
            at_v = o_j[:, None] * BLOCK_V + o_v[None, :]
            tl.store(p_p + at_v, -b_p, mask=m_j[:, None])
            tl.store(p_p + J * BLOCK_V + at_v, 2 * b_p * b_m, mask=m_j[:, None])
            tl.debug_barrier()
            b_theta = along_features(
                p_p + J * BLOCK_V, p_p, tl.zeros([BLOCK_J], tl.float64), p_W, o_j, o_k, p_first, p_second,
                stride_W, J, C, D, H, BLOCK_H, BLOCK_V,
            )  # fmt: skip
            b_theta = b_theta / units(p_first, p_second, b_scale, o_k, C * D)[None, :]
            b_log = log_sigmoid(b_a) + b_g - tl.sum(b_p * b_m * b_m, 1)
            at_j = row + n_b * J + o_j
            tl.store(p_theta + at_j[:, None] * K + o_k[None, :], b_theta.to(tl.float32), mask=m_j[:, None])
            tl.store(p_log + at_j * 2, b_log.to(tl.float32), mask=m_j)
            tl.store(p_log + at_j * 2 + 1, (b_log - b_log.to(tl.float32)).to(tl.float32), mask=m_j)


@triton.jit
def moments_fwd_kernel(
    p_count, first_phase, last_phase,
    p_a, p_x, p_offsets, p_W, p_B, p_use, p_ign, p_first, p_second,
    p_mean, p_row_0, p_part, p_scratch, p_shift, p_S, p_theta, p_log, p_a_out, p_mu_out, p_sig2_out,
    n_b, n_inp, n_iters, n_slots, slot_tiles, eps, stride_W, stride_use, stride_ign,
    PACKED: tl.constexpr, GAUSSIAN: tl.constexpr,
    J: tl.constexpr, C: tl.constexpr, D: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_I: tl.constexpr, BLOCK_JJ: tl.constexpr, BLOCK_X: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Phases: sums of capsules; then for every iteration the sums of features, and the models these give."""
    for phase in range(first_phase, last_phase):
        t = (phase - 1) // 2
        if phase == 0:
            capsule_sums(
                p_a, p_x, p_offsets, p_mean, n_b, n_inp, n_slots, slot_tiles, PACKED, C * D, BLOCK_I, BLOCK_X
            )  # fmt: skip
        elif phase == 1:
            first_sums(
                p_a, p_x, p_offsets, p_first, p_second, p_mean, p_row_0, p_shift, n_b, n_inp, n_slots, slot_tiles,
                PACKED, J, C * D, K, BLOCK_I, BLOCK_X,
            )  # fmt: skip
        elif (phase - 1) % 2 == 0:
            at = t * n_b * J  # an iteration's models are few
            feature_sums(
                p_a, p_x, p_offsets, p_first, p_second, p_shift, p_theta + at * K, p_log + at * 2, p_part,
                n_b, n_inp, n_slots, slot_tiles, PACKED, J, C * D, K, BLOCK_I, BLOCK_JJ, BLOCK_X, BLOCK_E,
            )  # fmt: skip
        else:
            models(
                p_W, p_B, p_use, p_ign, p_first, p_second, p_row_0, p_part, p_scratch, p_shift, p_S, p_theta, p_log,
                p_a_out, p_mu_out, p_sig2_out, n_b, t, n_iters, n_slots, eps, stride_W, stride_use, stride_ign,
                GAUSSIAN, J, C, D, H, K, BLOCK_X, BLOCK_V, BLOCK_D, BLOCK_H,
            )  # fmt: skip
        if phase + 1 < last_phase:
            wait_for_all(p_count, phase - first_phase + 1)


class Fixed(NamedTuple):
    """The kernels' constants for one set of sizes."""

    K: int
    X: int
    V: int
    D: int
    H: int
    JJ: int
    E: int


@lru_cache
def fixed(sizes: Sizes) -> Fixed:
    c, d, h = sizes.c, sizes.d, sizes.h
    power = triton.next_power_of_2
    pairs = d * (d + 1) // 2
    k = max(16, power(c * pairs + c * d + 1))
    return Fixed(
        k, max(16, power(c * d + 2)), power(c * h), power(d), power(h), max(16, power(sizes.j)), max(16, power(c * d))
    )


@lru_cache
def features(c: int, d: int, k: int, device: torch.device) -> Tensor:
    """First and second factor of every feature, `[2, k]`."""
    row, col = torch.triu_indices(d, d)
    starts = torch.arange(c).unsqueeze(1) * d
    line = torch.arange(c * d)
    one = torch.full_like(line, c * d)
    pairs = [torch.cat([(starts + row).flatten(), line, one[:1]]), torch.cat([(starts + col).flatten(), one, one[:1]])]
    return torch.nn.functional.pad(torch.stack(pairs), (0, k - len(pairs[0])), value=c * d + 1).int().to(device)


@lru_cache
def cut(n_samples: int, tiles: int, programs: int) -> int:
    """Slots per sample: as many as keep all programs busy for the least time, the fewest of these."""
    slots = range(1, min(tiles, 4 * programs // n_samples + 1) + 1)
    return min(slots, key=lambda n: (-(-n_samples * n // programs)) * (-(-tiles // n) + 1))


def fwd(
    plan: Plan, sizes: Sizes, a_inp: Tensor, x: Tensor, offsets: Tensor | None, W: Tensor, B: Tensor,
    beta_use: Tensor, beta_ign: Tensor,
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """The output capsules, and what the backward pass needs; shapes as in `votes_host.fwd`."""
    tile, n, f = TILES["fwd"], sizes, fixed(sizes)
    tiles = max(1, -(-n.i // tile.block_i))
    slots = cut(n.b, tiles, programs_at_once(x.device, tile.per_core))
    where = features(n.c, n.d, f.K, x.device)
    small = {"dtype": torch.float32, "device": x.device}
    exact = {"dtype": torch.float64, "device": x.device}
    mean, shift = torch.empty(n.b * slots, f.X, **exact), torch.empty(n.b, f.X, **exact)
    row_0 = torch.empty(n.b * slots, f.K, **exact)
    part = torch.empty(n.b * slots, n.j, f.K, **small)
    theta, log = torch.empty(plan.n_iters, n.b, n.j, f.K, **small), torch.empty(plan.n_iters, n.b, n.j, 2, **small)
    S = torch.empty(plan.n_iters, n.b, n.j, f.K, **exact)
    scratch = torch.empty(n.b, 2, n.j, f.V, **exact)
    a, mu, sig2 = torch.empty(n.b, n.j, **small), *torch.empty(2, n.b, n.j, n.c, n.h, **small)
    blocks = -(-n.j // BLOCK_J.value)
    run_phases(
        moments_fwd_kernel, 1 + 2 * plan.n_iters, n.b * max(slots, blocks), x, tile.warps, tile.per_core,
        (plan, n, a_inp.dtype, x.dtype, W.shape, beta_use.shape, beta_ign.shape),
        a_inp, x, x if offsets is None else offsets, W, B, beta_use, beta_ign, where[0], where[1],
        mean, row_0, part, scratch, shift, S, theta, log, a, mu, sig2,
        n.b, n.i, plan.n_iters, slots, -(-tiles // slots), plan.eps,
        *(p.stride(1) if p.shape[1] > 1 else 0 for p in (W, beta_use, beta_ign)),
        n.packed, plan.gaussian, n.j, n.c, n.d, n.h, f.K,
        tile.block_i, f.JJ, f.X, f.V, f.D, f.H, f.E,
    )  # fmt: skip
    return (a, mu, sig2), (shift, S, theta, log)
