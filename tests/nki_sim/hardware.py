"""The sizes of the device the simulator holds kernels to: one physical core of Trainium 2."""

from __future__ import annotations

PARTITIONS = 128
SBUF_PARTITION_BYTES = 224 * 1024
# The compiler keeps a part of it, and the core of Trainium 1 has 192 KiB. What fits the smaller size less
# 16 KiB fits every core there is.
SBUF_USABLE_BYTES = 176 * 1024
PSUM_BANKS = 8
PSUM_BANK_BYTES = 2048
PSUM_PARTITION_BYTES = PSUM_BANKS * PSUM_BANK_BYTES
MATMUL_ROWS = 128
MATMUL_STATIONARY = 128
MATMUL_MOVING = 512
BN_STATS_COLUMNS = 512
QUADRANT = 32
MAX_RANK = 5


class TileSize:
    """`nl.tile_size`: constants kernels read instead of writing numbers."""

    pmax = PARTITIONS
    psum_fmax = psum_bank_fmax = PSUM_BANK_BYTES // 4
    psum_fmax_bytes = psum_bank_fmax_bytes = PSUM_BANK_BYTES
    psum_num_banks = PSUM_BANKS
    psum_min_align = 4
    gemm_stationary_fmax = MATMUL_STATIONARY
    gemm_moving_fmax = MATMUL_MOVING
    bn_stats_fmax = BN_STATS_COLUMNS
    sbuf_size_bytes = SBUF_PARTITION_BYTES * PARTITIONS
    sbuf_fmax_bytes = total_available_sbuf_size = SBUF_USABLE_BYTES
    sbuf_fmax = SBUF_USABLE_BYTES // 4
    sbuf_min_align = 1
