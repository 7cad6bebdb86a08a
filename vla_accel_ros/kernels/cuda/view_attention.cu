// Attention among a view's tokens, for sm_90: kernels/reference/attention.py has the plain reference.
//
// A block computes 64 rows of one head of one view over all keys, so nothing needs to be combined. The head's
// first 64 columns are swizzled panels; its last 8 are separate panels with rows of 16 bytes, in wgmma's
// layout without swizzle.

#include "hopper.cuh"

constexpr int HEAD = 72, PANEL = 64, REST = HEAD - PANEL, ROWS = 64, KEYS = 256;
constexpr u32 Q_BYTES = ROWS * PANEL * 2, K_BYTES = KEYS * PANEL * 2;
constexpr u32 Q_REST = ROWS * REST * 2, K_REST = KEYS * REST * 2;

struct Arguments {
    u16 *out;     // [rows, heads * HEAD]
    float scale;  // of the scores, times log2(e)
    int heads;
};

// Load from [rows, slots, HEAD]: one slot's columns from x on.
__device__ __forceinline__ void load_tile(u32 to, const TensorMap &map, int x, int slot, int row,
                                          u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(&map), "r"(x), "r"(slot), "r"(row), "r"(barrier)
        : "memory");
}
// A wgmma operand with rows of 16 bytes. apart: bytes to the next 8 columns.
__device__ __forceinline__ u64 narrow_at(u32 address, u32 apart) {
    return u64((address & 0x3ffff) >> 4) | u64(apart >> 4) << 16 | u64(128 >> 4) << 32;
}

extern "C" __global__ void __launch_bounds__(160, 2)
    attend_views(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
                 const __grid_constant__ TensorMap q_rest_map, const __grid_constant__ TensorMap k_rest_map,
                 const Arguments a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 keys = shared(memory), values = keys + K_BYTES, queries = values + K_BYTES;
    u32 keys_rest = queries + Q_BYTES, values_rest = keys_rest + K_REST, queries_rest = values_rest + K_REST;
    u32 keys_here = queries_rest + 2 * Q_REST, values_here = keys_here + 8;
    int head = blockIdx.y, first = blockIdx.x * ROWS, view = first / KEYS * KEYS;

    if (threadIdx.x == 128) {
        prepare(keys_here, 1), prepare(values_here, 1);
        prepared();
        ask_for(q_map), ask_for(k_map), ask_for(q_rest_map), ask_for(k_rest_map);
        let_next_begin();
    }
    // Queries are zero beyond the head's last column, so the keys there may be anything finite.
    if (threadIdx.x < Q_REST / 16)
        *reinterpret_cast<uint4 *>(memory + (queries_rest - keys) + Q_REST + threadIdx.x * 16) =
            make_uint4(0, 0, 0, 0);
    show_engines();
    __syncthreads();
    after_previous();

    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128) {
            expect(keys_here, Q_BYTES + Q_REST + K_BYTES + K_REST);
            load_tile(queries, q_map, 0, head, first, keys_here);
            load_tile(queries_rest, q_rest_map, PANEL, head, first, keys_here);
            load_tile(keys, k_map, 0, a.heads + head, view, keys_here);
            load_tile(keys_rest, k_rest_map, PANEL, a.heads + head, view, keys_here);
            expect(values_here, K_BYTES + K_REST);
            load_tile(values, k_map, 0, 2 * a.heads + head, view, values_here);
            load_tile(values_rest, k_rest_map, PANEL, 2 * a.heads + head, view, values_here);
        }
        return;
    }

    float s[KEYS / 2];
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) s[i] = 0.0f;
    await(keys_here);
    begin_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply(s, tile_at(queries) + 2 * k, tile_at(keys) + 2 * k);
    multiply(s, narrow_at(queries_rest, Q_REST), narrow_at(keys_rest, 0));
    end_products();
    settle(s);

    float least[2], total[2] = {0.0f, 0.0f};
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        float highest = s[2 * lower];
#pragma unroll
        for (int i = 0; i < KEYS / 8; ++i)
            highest = fmaxf(highest, fmaxf(s[4 * i + 2 * lower], s[4 * i + 2 * lower + 1]));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
        least[lower] = -a.scale * fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
    }
    u32 weights[KEYS / 16][4];
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float first = power(fmaf(s[8 * k + 2 * i], a.scale, least[i % 2]));
            float second = power(fmaf(s[8 * k + 2 * i + 1], a.scale, least[i % 2]));
            total[i % 2] += first + second;
            weights[k][i] = pack(first, second);
        }
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        float sum = total[lower] + __shfl_xor_sync(~0u, total[lower], 1);
        total[lower] = 1.0f / (sum + __shfl_xor_sync(~0u, sum, 2));
    }
    float result[PANEL / 2], rest[REST / 2];
#pragma unroll
    for (int i = 0; i < PANEL / 2; ++i) result[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < REST / 2; ++i) rest[i] = 0.0f;
    await(values_here);
    begin_products();
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
        multiply(result, weights[k], tile_at(values) + k * (2048 / 16));
        multiply(rest, weights[k], narrow_at(values_rest, 128) + k * (256 / 16));
    }
    end_products();
    settle(result), settle(rest);

    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        float by = total[lower];
        u16 *to = a.out + (long long)(first + row + 8 * lower) * a.heads * HEAD + head * HEAD + pair;
#pragma unroll
        for (int i = 0; i < PANEL / 8; ++i)
            *reinterpret_cast<u32 *>(to + 8 * i) =
                pack(result[4 * i + 2 * lower] * by, result[4 * i + 2 * lower + 1] * by);
        *reinterpret_cast<u32 *>(to + PANEL) = pack(rest[2 * lower] * by, rest[2 * lower + 1] * by);
    }
}
