// A product of some hundred rows, for sm_90: kernels/reference/norm.py has the plain reference.
//
// Large tiles would be too few for the GPU, and small ones read too much from L2. So the blocks of a cluster
// share their loads by TMA multicast: DOWN blocks, one below the other, each load a part of their common
// weights, and ACROSS blocks side by side each load a part of their common activations. SPLIT blocks take a
// part of the inner dimension each (split-K), exchange sums through shared memory and add them in a fixed
// order, so that the same inputs give the same bits. One warp loads tiles of 64 columns; it fills the ring
// with weights before the launch waits for the previous one. A group of four warps multiplies (wgmma, float32
// sums) for each 64 rows.
//
// Macros: FINISH (PLAIN, GELU or ADD), ROWS (a multiple of 64) and COLUMNS of a tile, STAGES of tiles in
// flight, DOWN, ACROSS, SPLIT.

#include "hopper.cuh"

#define PLAIN 0
#define GELU 1
#define ADD 2

constexpr int CHUNK = 64, SUMS = COLUMNS / 2, GROUPS = ROWS / 64, MULTIPLIERS = GROUPS * 128;
constexpr int SHARING = DOWN * ACROSS, CLUSTER = SHARING * SPLIT;
constexpr u32 A_BYTES = ROWS * CHUNK * 2, W_BYTES = COLUMNS * CHUNK * 2, STAGE_BYTES = A_BYTES + W_BYTES;
constexpr u32 RING_BYTES = STAGES * STAGE_BYTES;
constexpr int OWN = COLUMNS / SPLIT, EIGHTS = OWN / 8;  // columns that a block stores
constexpr int PANEL = OWN % 64 == 0 ? 64 : OWN % 32 == 0 ? 32 : 16;
// A group's activations occupy 8 KB of each stage. After its products the group reuses them: first for
// partial sums of 8 columns (UNIT) that other splits need, then for panels of results.
constexpr u32 SLOT = 64 * CHUNK * 2, UNIT = 64 * 8 * 4;
constexpr int GIVEN = (SPLIT - 1) * EIGHTS, FIRST_RESULT = (GIVEN * UNIT + SLOT - 1) / SLOT;
constexpr u32 GOT_BYTES = (SPLIT - 1) * GROUPS * EIGHTS * UNIT;
static_assert(COLUMNS % (8 * DOWN) == 0 && ROWS % (8 * ACROSS) == 0, "parts of whole swizzles");
static_assert(OWN % 16 == 0 && FIRST_RESULT + (OWN + 63) / 64 <= STAGES, "results find room");

struct Arguments {
    const u16 *bias;  // [columns], or null
    const u16 *out;   // [rows, columns], of ADD: what is added to
    int rows, columns, chunks, down;  // down: clusters one below the other
};

__device__ __forceinline__ void group_meets(int group) {
    asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
// Load to the same address of each block of the cluster whose bit is set.
__device__ __forceinline__ void give_tile(u32 to, const TensorMap &map, int x, int y, u32 barrier,
                                          u16 blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
        : "memory");
}
// Signal that a buffer was read and may be overwritten. Nothing was stored, so this is no release: one at
// cluster scope would wait for memory, about a microsecond each time.
__device__ __forceinline__ void arrive_at(u32 barrier, int rank) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at_rank(barrier, rank)) : "memory");
}
__device__ __forceinline__ void store_tile(const TensorMap &map, int x, int y, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
                 "r"(x), "r"(y), "r"(from)
                 : "memory");
}
__device__ __forceinline__ void await_stored() {  // wait until the source was read
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Store four 8 x 8 matrices; each thread gives the address of one row.
__device__ __forceinline__ void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

struct Place {  // position of a block: in its cluster, and of its tile
    int part, down, across, first_rank, first_row, first_column, first_chunk, chunks;
    __device__ __forceinline__ Place(const Arguments &a) {
        int rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER;
        part = rank / SHARING, down = rank / ACROSS % DOWN, across = rank % ACROSS;
        first_rank = part * SHARING;
        first_row = (cluster % a.down * DOWN + down) * ROWS;
        first_column = (cluster / a.down * ACROSS + across) * COLUMNS;
        first_chunk = part * a.chunks / SPLIT, chunks = (part + 1) * a.chunks / SPLIT - first_chunk;
    }
};

struct Ring {
    u32 tiles, brought, freed;
    __device__ __forceinline__ u32 activations(int stage) const { return tiles + stage * STAGE_BYTES; }
    __device__ __forceinline__ u32 weights(int stage) const { return activations(stage) + A_BYTES; }
    // Load a part of a tile, for all blocks that share it.
    __device__ __forceinline__ void bring_weights(const TensorMap &map, const Place &p, int chunk) const {
        constexpr int HEIGHT = COLUMNS / DOWN;
        int stage = chunk % STAGES, x = (p.first_chunk + chunk) * CHUNK, y = p.first_column + p.down * HEIGHT;
        u32 to = weights(stage) + p.down * (W_BYTES / DOWN), barrier = brought + 8 * stage;
        if (DOWN == 1) return load_tile(to, map, x, y, barrier);
        u32 all = 0;
        for (int other = 0; other < DOWN; ++other) all |= 1u << other * ACROSS;
        give_tile(to, map, x, y, barrier, all << (p.first_rank + p.across));
    }
    __device__ __forceinline__ void bring_activations(const TensorMap &map, const Place &p, int chunk) const {
        constexpr int HEIGHT = ROWS / ACROSS;
        int stage = chunk % STAGES, x = (p.first_chunk + chunk) * CHUNK, y = p.first_row + p.across * HEIGHT;
        u32 to = activations(stage) + p.across * (A_BYTES / ACROSS), barrier = brought + 8 * stage;
        if (ACROSS == 1) return load_tile(to, map, x, y, barrier);
        give_tile(to, map, x, y, barrier, ((1u << ACROSS) - 1) << (p.first_rank + p.down * ACROSS));
    }
    // A warp has read a tile: signal it to all blocks that load a part of it.
    __device__ __forceinline__ void release(const Place &p, int stage) const {
        int lane = threadIdx.x % 32, other = lane - ACROSS, rank = p.down * ACROSS + lane;
        if (lane >= ACROSS) rank = (other + (other >= p.down)) * ACROSS + p.across;
        if (SHARING == 1 && lane == 0) arrive(freed + 8 * stage);
        if (SHARING > 1 && lane < ACROSS + DOWN - 1) arrive_at(freed + 8 * stage, p.first_rank + rank);
    }
};

extern "C" __global__ void __launch_bounds__(MULTIPLIERS + 32, 1)
    product(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap w_map,
            const __grid_constant__ TensorMap out_map, const Arguments a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    u32 start = shared(memory);
    u32 got = start + RING_BYTES, met = got + GOT_BYTES + 16 * STAGES;
    Ring ring{start, got + GOT_BYTES, got + GOT_BYTES + 8 * STAGES};
    float *biases = reinterpret_cast<float *>(memory + RING_BYTES + GOT_BYTES + 16 * STAGES + 8 * GROUPS);
    Place p(a);

    auto early_weights = [&] {
        for (int chunk = 0; chunk < min(STAGES, p.chunks); ++chunk) {
            expect(ring.brought + 8 * chunk, STAGE_BYTES);
            ring.bring_weights(w_map, p, chunk);
        }
    };

    if (threadIdx.x == MULTIPLIERS) {
        ask_for(w_map), ask_for(a_map), ask_for(out_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            prepare(ring.brought + 8 * stage, 1);
            prepare(ring.freed + 8 * stage, MULTIPLIERS / 32 * (DOWN + ACROSS - 1));
        }
        for (int group = 0; group < GROUPS; ++group) prepare(met + 8 * group, 1);
        prepared();
        for (int group = 0; SPLIT > 1 && group < GROUPS; ++group) expect(met + 8 * group, GIVEN * UNIT);
        let_next_begin();
        if (DOWN == 1) early_weights();
    }
    __syncthreads();
    if (CLUSTER > 1) cluster_arrive();

    if (threadIdx.x >= MULTIPLIERS) {
        if (CLUSTER > 1) cluster_wait();  // all blocks have initialised their barriers
        if (threadIdx.x == MULTIPLIERS) {
            if (DOWN > 1) early_weights();
            after_previous();
            for (int chunk = 0; chunk < min(STAGES, p.chunks); ++chunk)
                ring.bring_activations(a_map, p, chunk);
            for (int chunk = STAGES; chunk < p.chunks; ++chunk) {
                int stage = chunk % STAGES;
                await(ring.freed + 8 * stage, chunk / STAGES - 1);
                expect(ring.brought + 8 * stage, STAGE_BYTES);
                ring.bring_weights(w_map, p, chunk);
                ring.bring_activations(a_map, p, chunk);
            }
        }
        __syncwarp();
        if (SPLIT > 1) cluster_arrive(), cluster_wait();
        return;
    }

    int group = group_of(128), thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    int own_column = p.part * OWN + lane % 4 * 2;
    float c[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; ++i) c[i] = 0.0f;
    for (int i = threadIdx.x; i < COLUMNS; i += MULTIPLIERS) {
        int column = p.first_column + i;
        biases[i] = a.bias && column < a.columns ? wide(a.bias[column]) : 0.0f;
    }
    if (CLUSTER > 1) cluster_wait();
    after_previous();
#if FINISH == ADD
    u32 before[OWN / 4];
#pragma unroll
    for (int i = 0; i < OWN / 4; ++i) {
        int at = p.first_row + threadIdx.x / 32 * 16 + lane / 4 + i % 2 * 8;
        int column = p.first_column + own_column + i / 2 * 8;
        bool ok = at < a.rows && column < a.columns;
        before[i] = ok ? *reinterpret_cast<const u32 *>(a.out + (long long)at * a.columns + column) : 0;
    }
#endif
    settle(c);
#pragma unroll 1
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
        int stage = chunk % STAGES;
        await(ring.brought + 8 * stage, chunk / STAGES);
        u64 left = tile_at(ring.activations(stage) + group * (64 * CHUNK * 2)),
            right = tile_at(ring.weights(stage));
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply(c, left + 2 * k, right + 2 * k);
        commit_products();
        wait_for_products<1>();  // products of the chunk before are done
        if (chunk && chunk - 1 + STAGES < p.chunks) ring.release(p, (chunk - 1) % STAGES);
    }
    wait_for_products<0>();
    settle(c);

    group_meets(group);  // the whole group has read its activations
    float v[SUMS / SPLIT];
    u32 slots = ring.activations(0) + group * SLOT;
#if SPLIT > 1
#pragma unroll
    for (int part = 0; part < SPLIT; ++part) {
        int other = part - (part > p.part);  // index among the other splits
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i) {
            const float *sums = c + (part * EIGHTS + i) * 4;
            if (part == p.part) {
#pragma unroll
                for (int j = 0; j < 4; ++j) v[4 * i + j] = sums[j];
            } else {
                int unit = other * EIGHTS + i;
                u32 to = slots + unit / 4 * STAGE_BYTES + unit % 4 * UNIT + thread * 16;
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(sums[0]),
                             "f"(sums[1]), "f"(sums[2]), "f"(sums[3])
                             : "memory");
            }
        }
    }
    show_engines();
    group_meets(group);
    if (thread < GIVEN) {
        int other = thread / EIGHTS, part = other + (other >= p.part), mine = p.part - (p.part > part);
        int rank = part * SHARING + p.down * ACROSS + p.across;
        u32 to = got + ((mine * GROUPS + group) * EIGHTS + thread % EIGHTS) * UNIT;
        send(at_rank(to, rank), slots + thread / 4 * STAGE_BYTES + thread % 4 * UNIT, UNIT,
             at_rank(met + 8 * group, rank));
    }
    await(met + 8 * group);
#pragma unroll
    for (int other = 0; other < SPLIT - 1; ++other)
#pragma unroll
        for (int i = 0; i < EIGHTS; ++i) {
            u32 from = got + ((other * GROUPS + group) * EIGHTS + i) * UNIT + thread * 16;
            float4 sums;
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(sums.x), "=f"(sums.y), "=f"(sums.z), "=f"(sums.w)
                         : "r"(from));
            v[4 * i] += sums.x, v[4 * i + 1] += sums.y, v[4 * i + 2] += sums.z, v[4 * i + 3] += sums.w;
        }
    __syncwarp();
    cluster_arrive();
#else
#pragma unroll
    for (int i = 0; i < SUMS; ++i) v[i] = c[i];
#endif

    int within = threadIdx.x / 32 % 4 * 16 + lane % 16;  // row of a panel whose address this thread gives
    int turn = PANEL == 64 ? within % 8 : PANEL == 32 ? within / 2 % 4 : within / 4 % 2;
#pragma unroll
    for (int j = 0; j < OWN / 16; ++j) {
        u32 made[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float2 bias = *reinterpret_cast<const float2 *>(biases + own_column + j * 16 + i * 8);
#pragma unroll
            for (int lower = 0; lower < 2; ++lower) {
                float first = v[8 * j + 4 * i + 2 * lower] + bias.x;
                float second = v[8 * j + 4 * i + 2 * lower + 1] + bias.y;
#if FINISH == ADD
                u32 two = before[4 * j + 2 * i + lower];
                first += wide(two & 0xffff), second += wide(two >> 16);
#elif FINISH == GELU
                first = gelu(first), second = gelu(second);
#endif
                made[2 * i + lower] = pack(first, second);
            }
        }
        int panel = j * 16 / PANEL, eight = j * 16 % PANEL / 8 + lane / 16;
        u32 to = slots + (FIRST_RESULT + panel * PANEL / 64) * STAGE_BYTES + panel * PANEL % 64 * 128;
        store_matrices(to + within * (PANEL * 2) + (eight ^ turn) * 16, made[0], made[1], made[2], made[3]);
    }
    show_engines();
    group_meets(group);
    if (thread < OWN / PANEL) {
        int columns = thread * PANEL;
        store_tile(out_map, p.first_column + p.part * OWN + columns, p.first_row + group * 64,
                   slots + (FIRST_RESULT + columns / 64) * STAGE_BYTES + columns % 64 * 128);
        await_stored();
    }
    __syncwarp();
    if (SPLIT > 1) cluster_wait();  // wait until the other blocks have received this block's sums
}
